"""Find, check and build plugins by the names used in the configuration."""

import difflib
import inspect
import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from epp.errors import PluginError

from .plugins import Scorer

GROUP = "epp.scorers"


def scorer_names() -> list[str]:
    """Names of all installed scorers, sorted."""
    return sorted(entry.name for entry in entry_points(group=GROUP))


def build_scorer(kind: str, parameters: Mapping[str, Any], where: str = "") -> Scorer:
    """Build the scorer registered as `kind`; unknown names and parameters are a PluginError.

    Parameters may be spelled as in the reference's YAML (`matchLengthWeight`) or as in Python
    (`match_length_weight`).
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    entry = found.get(kind)
    if entry is None:
        near = difflib.get_close_matches(kind, found, n=1)
        known = ", ".join(sorted(found))
        hint = f"did you mean {near[0]!r}?" if near else f"known scorers: {known}"
        raise PluginError(where, f"no scorer is called {kind!r}; {hint}")
    plugin = _load(entry)
    arguments = _arguments(kind, plugin, parameters, where)
    try:
        return cast("Scorer", plugin(**arguments))
    except (TypeError, ValueError) as error:
        raise PluginError(where, f"scorer {kind!r}: {error}") from error


def _arguments(kind: str, plugin: Any, parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Python's names for the parameters of the YAML."""
    known = inspect.signature(plugin).parameters
    arguments: dict[str, Any] = {}
    for name, value in parameters.items():
        argument = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
        if argument not in known:
            listed = ", ".join(sorted(known)) or "none"
            what = f"scorer {kind!r} has no parameter {name!r}; known parameters: {listed}"
            raise PluginError(where, what)
        if argument in arguments:
            raise PluginError(where, f"scorer {kind!r}: parameter {name!r} is given twice")
        arguments[argument] = value
    return arguments


def _load(entry: EntryPoint) -> Any:
    plugin = entry.load()
    if entry.dist is not None:
        top = entry.module.partition(".")[0]
        owned = {file.parts[0] for file in entry.dist.files or ()}
        editable = any(name.startswith("_editable") or name.endswith(".pth") for name in owned)
        if top not in owned and not editable:
            raise PluginError(
                "",
                f"scorer {entry.name!r} resolves to a package {top!r} of another distribution; "
                "install the picker in an environment of its own",
            )
    return plugin
