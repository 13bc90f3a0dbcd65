"""Find, check and build plugins by the names used in the configuration.

Plugins are found through entry points, one group a kind; a third party adds one by installing a
package. What a plugin can be told is its constructor's signature.
"""

import difflib
import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from math import isfinite
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from epp.errors import PluginError

from .plugins import PRODUCED, Scorer, yaml_name

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word begins within a name: `maxTTFTPenaltyMs` has four."""
_SAID = {"unexpected_keyword_argument": "there is no such parameter"}
"""Sentences in place of pydantic's."""


class Kind(StrEnum):
    """What a plugin does. The value names it in sentences."""

    SCORER = "scorer"
    FILTER = "filter"
    PICKER = "picker"
    HANDLER = "profile handler"
    DECIDER = "decider"
    PRODUCER = "producer"
    DETECTOR = "saturation detector"
    ADMITTER = "request admitter"

    @property
    def group(self) -> str:
        """Group of its entry points: `epp.scorers`, `epp.handlers`."""
        return f"epp.{self.value.split()[-1]}s"


class Stability(StrEnum):
    """How far a plugin's name, parameters and rule may be relied on; class attribute `stability`.

    Alpha plugins need `--allow-experimental-plugins`.
    """

    STABLE = "stable"
    BETA = "beta"
    ALPHA = "alpha"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing that a plugin can be told."""

    name: str
    """As Python spells it."""
    annotation: Any
    default: Any
    required: bool
    yaml_name: str
    """As the reference's YAML spells it: `maxNumOfEndpoints`. The plugin's class attribute
    `spelled` has those with an abbreviation in them: `{"max_ttl": "maxTTL"}`."""


@dataclass(frozen=True, slots=True)
class PluginType:
    """One installed type of plugin."""

    name: str
    kind: Kind
    factory: Any

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        hints = typing.get_type_hints(self.factory.__init__, include_extras=True)
        spelled: Mapping[str, str] = getattr(self.factory, "spelled", {})
        return tuple(
            Parameter(
                name,
                hints.get(name, Any),
                None if found.default is inspect.Parameter.empty else found.default,
                found.default is inspect.Parameter.empty,
                spelled.get(name) or yaml_name(name),
            )
            for name, found in inspect.signature(self.factory).parameters.items()
        )

    @property
    def stability(self) -> Stability:
        return Stability(getattr(self.factory, "stability", Stability.STABLE))

    @property
    def consumes(self) -> frozenset[str]:
        return self._data("consumes")

    @property
    def produces(self) -> frozenset[str]:
        return self._data("produces")

    @property
    def without_effect(self) -> Mapping[str, str]:
        """Parameters that are read and change nothing, by their YAML name, each with the reason."""
        reasons: Mapping[str, str] = getattr(self.factory, "without_effect", {})
        return {one.yaml_name: reasons[one.name] for one in self.parameters if one.name in reasons}

    @property
    def keeps(self) -> bool:
        """Whether it filters: filters do, scorers and saturation detectors may."""
        return hasattr(self.factory, "keep")

    @property
    def summary(self) -> str:
        """First sentence of what it says of itself."""
        module = inspect.getmodule(self.factory)
        text = (module.__doc__ if module is not None else None) or self.factory.__doc__ or ""
        return text.strip().partition("\n")[0]

    def build(self, parameters: Mapping[str, Any], where: str = "") -> Any:
        """The plugin with these parameters, as the YAML or as Python spells them.

        Raises PluginError for a name that it does not know, or a value that it refuses.
        """
        arguments = self._arguments(parameters, where)
        try:
            return self.factory(**arguments)
        except Exception as error:  # whatever a stranger's constructor makes of odd values
            raise PluginError(where, *self._refused(str(error), parameters)) from error

    def _data(self, attribute: str) -> frozenset[str]:
        names = frozenset(getattr(self.factory, attribute, ()))
        odd = names - PRODUCED
        if odd:
            what = f"{self.kind} {self.name!r} {attribute} {sorted(odd)}: known are"
            raise PluginError("", f"{what} {', '.join(sorted(PRODUCED))}")
        return names

    def _arguments(self, parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
        known = {parameter.name: parameter for parameter in self.parameters}
        arguments: dict[str, Any] = {}
        for name, value in parameters.items():
            if not _finite(value):
                what = f"{self.kind} {self.name!r}: {name} must be finite, got {value!r}"
                raise PluginError(where, what[:500], (name,))
            argument = _WORDS.sub("_", name).lower()
            if argument not in known:
                raise PluginError(where, self._unknown(name), (name,))
            if argument in arguments:
                raise PluginError(
                    where, f"{self.kind} {self.name!r}: parameter {name!r} is given twice", (name,)
                )
            arguments[argument] = self._typed(known[argument], name, value, where)
        missing = [
            one.yaml_name for one in known.values() if one.required and one.name not in arguments
        ]
        if missing:
            raise PluginError(where, f"{self.kind} {self.name!r} needs {', '.join(missing)}")
        return arguments

    def _typed(self, parameter: Parameter, name: str, value: Any, where: str) -> Any:
        try:
            return TypeAdapter[Any](parameter.annotation).validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            path = ".".join(map(str, (name, *first["loc"])))
            message = _SAID.get(first["type"]) or first["msg"].removeprefix("Value error, ")
            what = f"{self.kind} {self.name!r}: {path}: {message[:1].lower()}{message[1:]}"
            place = (name, *first["loc"])
            raise PluginError(where, f"{what}, got {first['input']!r}"[:500], place) from error

    def _refused(self, sentence: str, parameters: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """The constructor's own sentence with the value, and the parameter that it begins with,
        such as `minRange` or `deciders.encode`."""
        first, *rest = sentence.partition(" ")[0].strip(":,'\"").split(".")
        value: Any = parameters
        path: list[str] = []
        for word in (first, *rest):
            named = [name for name in value if word in {name, yaml_name(name)}]
            if not named:
                break
            path.append(named[0])
            value = value[named[0]]
            if not isinstance(value, Mapping):
                break
        shown = isinstance(value, Mapping) or ", got " in sentence
        said = sentence if shown else f"{sentence}, got {value!r}"[:500]
        return f"{self.kind} {self.name!r}: {said}", tuple(path)

    def _unknown(self, name: str) -> str:
        known = [parameter.yaml_name for parameter in self.parameters]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
        return f"{self.kind} {self.name!r} has no parameter {name!r}; {hint}"


def _finite(value: Any) -> bool:
    """Whether no number in it is infinite or none at all (fault B09)."""
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    return not isinstance(value, list) or all(map(_finite, value))


def types(kind: Kind) -> dict[str, PluginType]:
    """All installed types of one kind by name. Raises PluginError for one that cannot be loaded."""
    return {name: PluginType(name, kind, _load(entry)) for name, entry in _entries(kind).items()}


def names(kind: Kind) -> list[str]:
    """Names of all installed types of one kind, sorted; nothing is loaded."""
    return sorted(_entries(kind))


def find(name: str) -> PluginType | None:
    """The installed type of this name, whatever its kind; None where there is none."""
    for kind in Kind:
        entry = _entries(kind).get(name)
        if entry is not None:
            return PluginType(name, kind, _load(entry))
    return None


def build_scorer(kind: str, parameters: Mapping[str, Any], where: str = "") -> Scorer:
    """Build the scorer registered as `kind`. Raises PluginError."""
    entry = _entries(Kind.SCORER).get(kind)
    if entry is None:
        known = names(Kind.SCORER)
        near = difflib.get_close_matches(kind, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known scorers: {', '.join(known)}"
        raise PluginError(where, f"no scorer is called {kind!r}; {hint}")
    return cast("Scorer", PluginType(kind, Kind.SCORER, _load(entry)).build(parameters, where))


@cache
def _entries(kind: Kind) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=kind.group)}


def _load(entry: EntryPoint) -> Any:
    try:
        plugin = entry.load()
    except Exception as error:  # whatever a stranger's module does when it is imported
        raise PluginError("", f"plugin {entry.name!r} cannot be loaded: {error}") from error
    if entry.dist is not None:
        top = entry.module.partition(".")[0]
        parts = {file.parts[0] for file in entry.dist.files or ()}
        owned = {part.partition(".")[0] for part in parts}  # `mine.py`, `mine.abi3.so`, `mine`
        editable = any(part.startswith("_editable") or part.endswith(".pth") for part in parts)
        if top not in owned and not editable:
            raise PluginError(
                "",
                f"plugin {entry.name!r} resolves to a package {top!r} of another distribution; "
                "install the picker in an environment of its own",
            )
    return plugin
