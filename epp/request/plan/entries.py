"""The `plugins` of a configuration: each one's type found and its parameters tried. Pure.

A plugin is entered once and referred to by its name. What is not here is refused with what to use
instead; what means nothing here is entered as a name that does nothing, and said so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from epp.config.located import Located, Location, unknown
from epp.config.picker_config import PluginEntry
from epp.errors import ConfigError, PluginError
from epp.framework import registry
from epp.framework.plugins import yaml_name
from epp.framework.registry import Kind, PluginType, Stability

from . import elsewhere
from .plan import Use


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What flags say about configurations."""

    allow_experimental: bool = False
    """Alpha plugins may be used."""


STABLE_ONLY = Options()


class Entries:
    """The plugins of one configuration by their names, and who of them is used."""

    def __init__(self, file: Located, options: Options) -> None:
        self.file = file
        self.uses: dict[str, Use] = {}
        self.parsers: dict[str, str] = {}
        """Parsers by their names: the family of each."""
        self.notes: list[str] = []
        self._options = options
        self._idle: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._used: set[str] = set()

    def enter(self, number: int, entry: PluginEntry) -> None:
        """Raises ConfigError with the place of what is wrong."""
        path: Location = ("plugins", number)
        name = entry.name or entry.type
        if name in self._places:
            spot = (*path, "name") if entry.name else (*path, "type")
            raise self.file.fault(spot, f"{name!r} is the name of an earlier plugin")
        self._places[name] = self.file.at(path)
        spot = (*path, "type")
        if entry.type in elsewhere.PARSERS:
            self.parsers[name] = entry.type
            self._no_parameters(entry, path)
        elif entry.type in elsewhere.NOTHING_TO_DO:
            self._idle[name] = entry.type
            why = elsewhere.NOTHING_TO_DO[entry.type]
            self.note(spot, f"{name!r} does nothing here: {why}")
        else:
            self.uses[name] = self._use(entry, name, path)

    def refer(self, name: str, spot: Location) -> Use:
        """The plugin of this name, which is used by that. Raises ConfigError."""
        use = self.uses.get(name)
        if use is not None:
            self._used.add(name)
            return use
        for others, what in ((self.parsers, "a parser"), (self._idle, "a plugin without effect")):
            if name in others:
                raise self.file.fault(spot, f"{name!r} is {what}: it cannot stand here")
        raise self.file.fault(spot, self.unknown(name))

    def unknown(self, name: str) -> str:
        """A sentence for a name that no entry has."""
        installed = any(name in registry.names(kind) for kind in Kind)
        if installed or name in elsewhere.PARSERS:
            return f"`plugins` has no entry {name!r}: add `- type: {name}` there"
        return unknown("plugin", name, list(self._places))

    def is_idle(self, name: str) -> bool:
        """Whether a plugin of this name stands here and has no effect."""
        return name in self._idle

    def mark_used(self, *names: str) -> None:
        self._used.update(names)

    def of(self, kind: Kind) -> list[Use]:
        return [use for use in self.uses.values() if use.type.kind is kind]

    def note(self, spot: Location, sentence: str) -> None:
        self.notes.append(f"{self.file.at(spot)} {sentence}")

    def note_unused(self) -> None:
        for name in (*self.uses, *self.parsers):
            if name not in self._used:
                self.notes.append(f"{self._places[name]} nothing refers to {name!r}: it is not run")

    # One entry

    def _use(self, entry: PluginEntry, name: str, path: Location) -> Use:
        spot = (*path, "type")
        try:
            kind = self._type(entry.type, spot)
            given = {key: value for key, value in entry.parameters.items() if value is not None}
            use = Use(reference=name, type=kind, parameters=given, where=self.file.at(path))
            use.build()
        except PluginError as error:
            at = (*path, "parameters", *error.path) if error.path else spot
            raise self.file.fault(at, error.what) from error
        self._used.update(_words(given))
        for key in given:
            reason = kind.without_effect.get(yaml_name(key))
            if reason is not None:
                self.note((*path, "parameters", key), f"{key!r} changes nothing here: {reason}")
        return use

    def _type(self, name: str, spot: Location) -> PluginType:
        found = registry.find(name)
        if found is None:
            raise self.file.fault(spot, self._why_not(name))
        if found.stability is Stability.ALPHA and not self._options.allow_experimental:
            what = f"{name!r} is experimental: start with --allow-experimental-plugins"
            raise self.file.fault(spot, what)
        replaced = elsewhere.DEPRECATED.get(name)
        if replaced is not None:
            self.note(spot, f"{name!r} is deprecated: use {replaced}")
        return found

    def _why_not(self, name: str) -> str:
        instead = elsewhere.REFUSED.get(name)
        if instead is not None:
            return f"{name!r} is not offered here: {instead}"
        known = [each for kind in Kind for each in registry.names(kind)]
        return unknown("plugin type", name, [*known, *elsewhere.PARSERS, *elsewhere.REFUSED])

    def _no_parameters(self, entry: PluginEntry, path: Location) -> None:
        for name in entry.parameters:
            what = f"{entry.type!r} has no parameter {name!r}; known: none"
            raise self.file.fault((*path, "parameters", name), what)


def added(name: str) -> Use:
    """A plugin that a rule puts in. Raises ConfigError where it is not installed."""
    found = registry.find(name)
    if found is None:
        raise ConfigError("", f"{name} is not installed: is the picker's own package complete?")
    return Use(reference=name, type=found)


def _words(value: Any) -> Iterator[str]:
    """Every text among parameters: plugins name each other there."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _words(part)
    elif isinstance(value, list):
        for part in value:
            yield from _words(part)
