"""Find, check and build plugins by the names used in the configuration."""

import difflib
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
    """Build the scorer registered as `kind`; unknown names and parameters are a PluginError."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    entry = found.get(kind)
    if entry is None:
        near = difflib.get_close_matches(kind, found, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known scorers: {', '.join(sorted(found))}"
        raise PluginError(where, f"no scorer is called {kind!r}; {hint}")
    try:
        return cast("Scorer", _load(entry)(**parameters))
    except (TypeError, ValueError) as error:
        raise PluginError(where, f"scorer {kind!r}: {error}") from error


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
