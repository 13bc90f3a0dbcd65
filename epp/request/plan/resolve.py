"""Check a configuration's names against what is installed, by the reference's rules. Pure.

Rules (llm-d-router, `pkg/epp/config/loader`): exactly one profile handler, which is
`single-profile-handler` where there is one profile and none is named; a profile without a picker
gets `max-score-picker`; no profiles at all means one, `default`, of every filter, scorer and picker
in the order written; a name stands once; a reference names an entry. Ours: a weight belongs to a
scorer; what is not here is refused with what to use instead, and nothing is substituted silently.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from epp.config.located import Located, Location, unknown
from epp.config.picker_config import PickerConfig, PluginEntry, ProfileEntry, parse
from epp.errors import ConfigError
from epp.framework import registry
from epp.framework.registry import Kind, PluginType, Stability

from . import elsewhere
from .plan import Plan, ProfilePlan, Use

DEFAULT_PICKER = "max-score-picker"
SINGLE_HANDLER = "single-profile-handler"
_IN_PROFILES = (Kind.FILTER, Kind.SCORER, Kind.PICKER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What flags say about configurations."""

    allow_experimental: bool = False
    """Alpha plugins may be used."""


def resolve(text: bytes, where: str, options: Options = Options()) -> Plan:
    """The plan of a configuration's text. Raises ConfigError with `file:line:column`."""
    config, file = parse(text, where)
    return _Resolver(config, file, options).plan()


def default_plan() -> Plan:
    """What runs without a configuration."""
    return resolve(elsewhere.DEFAULT_CONFIG, "default")


class _Resolver:
    def __init__(self, config: PickerConfig, file: Located, options: Options) -> None:
        self._config = config
        self._file = file
        self._options = options
        self._uses: dict[str, Use] = {}
        self._parsers: dict[str, str] = {}
        self._used: set[str] = set()
        self._notes: list[str] = []

    def plan(self) -> Plan:
        self._refuse_what_is_not_here()
        for number, entry in enumerate(self._config.plugins):
            self._enter(number, entry)
        profiles = self._profiles()
        handler = self._handler(profiles)
        producers, consumers = self._data()
        parsers = self._chosen_parsers()
        self._note_idle()
        return Plan(
            source=self._file.where,
            profiles=profiles,
            handler=handler,
            deciders={use.reference: use for use in self._of(Kind.DECIDER)},
            producers=producers,
            consumers=consumers,
            parsers=parsers,
            notes=tuple(self._notes),
        )

    # Entries

    def _enter(self, number: int, entry: PluginEntry) -> None:
        path: Location = ("plugins", number)
        if entry.reference in self._uses or entry.reference in self._parsers:
            spot = (*path, "name") if entry.name else (*path, "type")
            raise self._file.fault(spot, f"{entry.reference!r} is the name of an earlier plugin")
        if entry.type in elsewhere.PARSERS:
            self._parsers[entry.reference] = entry.type
            return
        kind = self._type(entry.type, (*path, "type"))
        self._uses[entry.reference] = use = Use(
            reference=entry.reference,
            type=kind,
            parameters=entry.parameters or {},
            where=self._file.at(path),
        )
        try:
            use.build()
        except ConfigError as error:
            raise self._file.fault((*path, "parameters"), error.what) from error

    def _type(self, name: str, spot: Location) -> PluginType:
        found = registry.find(name)
        if found is None:
            raise self._file.fault(spot, self._why_not(name))
        if found.stability is Stability.ALPHA and not self._options.allow_experimental:
            raise self._file.fault(
                spot, f"{name!r} is experimental: start with --allow-experimental-plugins"
            )
        replaced = elsewhere.DEPRECATED.get(name)
        if replaced is not None:
            self._notes.append(f"{self._file.at(spot)} {name!r} is deprecated: {replaced}")
        return found

    def _why_not(self, name: str) -> str:
        instead = elsewhere.REFUSED.get(name)
        if instead is not None:
            return f"{name!r} is not offered here: {instead}"
        known = [each for kind in Kind for each in registry.names(kind)]
        return unknown("plugin type", name, [*known, *elsewhere.PARSERS, *elsewhere.REFUSED])

    # Profiles

    def _profiles(self) -> dict[str, ProfilePlan]:
        entries = self._config.scheduling_profiles
        if not entries:
            uses = [use for use in self._uses.values() if use.type.kind in _IN_PROFILES]
            self._used.update(use.reference for use in uses)
            weighted = [(use, 1.0) for use in uses]
            return {"default": self._profile("default", weighted, ("plugins",))}
        found: dict[str, ProfilePlan] = {}
        for number, entry in enumerate(entries):
            path: Location = ("schedulingProfiles", number)
            if entry.name in found:
                raise self._file.fault((*path, "name"), f"{entry.name!r} names an earlier profile")
            found[entry.name] = self._profile(entry.name, self._referred(entry, path), path)
        return found

    def _referred(self, entry: ProfileEntry, path: Location) -> list[tuple[Use, float]]:
        found: list[tuple[Use, float]] = []
        for number, part in enumerate(entry.plugins):
            spot: Location = (*path, "plugins", number)
            use = self._refer(part.plugin_ref, (*spot, "pluginRef"))
            kind = use.type.kind
            if kind not in _IN_PROFILES:
                what = f"{use.reference!r} is a {kind}; profiles hold filters, scorers and a picker"
                raise self._file.fault((*spot, "pluginRef"), what)
            if part.weight is not None and kind is not Kind.SCORER:
                what = f"weight counts for scorers; {use.reference!r} is a {kind}"
                raise self._file.fault((*spot, "weight"), what)
            if any(use is earlier for earlier, _ in found):
                what = f"{use.reference!r} stands in this profile already"
                raise self._file.fault((*spot, "pluginRef"), what)
            found.append((use, 1.0 if part.weight is None else part.weight))
        return found

    def _profile(
        self, name: str, parts: Sequence[tuple[Use, float]], path: Location
    ) -> ProfilePlan:
        pickers = [use for use, _ in parts if use.type.kind is Kind.PICKER]
        if len(pickers) > 1:
            both = ", ".join(use.reference for use in pickers)
            raise self._file.fault(path, f"profile {name!r} has several pickers: {both}")
        return ProfilePlan(
            name=name,
            filters=tuple(use for use, _ in parts if use.type.keeps),
            scorers=tuple(part for part in parts if part[0].type.kind is Kind.SCORER),
            picker=pickers[0] if pickers else _added(DEFAULT_PICKER),
        )

    def _handler(self, profiles: Mapping[str, ProfilePlan]) -> Use:
        handlers = self._of(Kind.HANDLER)
        if len(handlers) > 1:
            both = ", ".join(use.reference for use in handlers)
            raise self._file.fault(("plugins",), f"one profile handler is enough, here are: {both}")
        if not handlers and len(profiles) == 1:
            return _added(SINGLE_HANDLER)
        if not handlers:
            what = "several profiles need a profile handler, such as disagg-profile-handler"
            raise self._file.fault(("schedulingProfiles",), what)
        use = handlers[0]
        self._used.add(use.reference)
        try:
            fault = use.build().fault(frozenset(profiles), frozenset(self._deciders()))
        except ConfigError as error:
            raise ConfigError(use.where, error.what) from error
        if fault:
            raise ConfigError(use.where, f"profile handler {use.reference!r}: {fault}")
        self._used.update(getattr(use.build(), "deciders", ()))
        return use

    def _deciders(self) -> Iterable[str]:
        return (use.reference for use in self._of(Kind.DECIDER))

    # Data

    def _data(self) -> tuple[dict[str, tuple[Use, ...]], dict[str, tuple[str, ...]]]:
        """Who feeds which data, and who reads it. What nobody feeds comes from our own state."""
        producers: dict[str, tuple[Use, ...]] = {}
        for use in self._of(Kind.PRODUCER):
            for data in sorted(use.type.produces):
                producers[data] = (*producers.get(data, ()), use)
            self._used.add(use.reference)
        consumers: dict[str, tuple[str, ...]] = {}
        for use in self._uses.values():
            for data in sorted(use.type.consumes):
                consumers[data] = (*consumers.get(data, ()), use.reference)
        return producers, consumers

    def _chosen_parsers(self) -> tuple[str, ...] | None:
        handler = self._config.request_handler
        refs = [] if handler is None else handler.parsers
        at: Location = ("requestHandler", "parsers")
        if self._config.parser is not None:
            self._notes.append(f"{self._file.at(('parser',))} use requestHandler.parsers instead")
            refs, at = [self._config.parser], ("parser",)
        chosen: list[str] = []
        for number, ref in enumerate(refs):
            spot: Location = (*at, number, "pluginRef") if len(at) > 1 else (*at, "pluginRef")
            kind = self._parsers.get(ref.plugin_ref)
            if kind is None:
                raise self._file.fault(spot, unknown("parser", ref.plugin_ref, self._parsers))
            self._used.add(ref.plugin_ref)
            chosen.append(kind)
        return tuple(chosen) or None

    # The rest

    def _refuse_what_is_not_here(self) -> None:
        for number, gate in enumerate(self._config.feature_gates):
            why = elsewhere.GATES.get(gate.partition("=")[0])
            if why is None:
                what = unknown("feature gate", gate, list(elsewhere.GATES))
                raise self._file.fault(("featureGates", number), what)
            if why and not gate.endswith("=false"):
                raise self._file.fault(("featureGates", number), f"{gate!r} is not offered: {why}")
        for name, why in elsewhere.SECTIONS.items():
            if name in self._file.value:
                raise self._file.fault((name,), f"{name!r} is not offered here: {why}")

    def _refer(self, name: str, spot: Location) -> Use:
        use = self._uses.get(name)
        if use is None:
            raise self._file.fault(spot, unknown("plugin", name, list(self._uses)))
        self._used.add(name)
        return use

    def _of(self, kind: Kind) -> list[Use]:
        return [use for use in self._uses.values() if use.type.kind is kind]

    def _note_idle(self) -> None:
        idle = [name for name in (*self._uses, *self._parsers) if name not in self._used]
        for name in idle:
            place = self._uses[name].where if name in self._uses else self._file.where
            self._notes.append(f"{place} nothing refers to {name!r}: it does nothing")


def _added(name: str) -> Use:
    found = registry.find(name)
    if found is None:
        raise ConfigError("", f"{name} is not installed: is the picker's own package complete?")
    return Use(reference=name, type=found)
