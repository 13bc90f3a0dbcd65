"""Check a configuration's names against what is installed, by the reference's rules. Pure.

Rules (llm-d-router, `pkg/epp/config/loader`): exactly one profile handler, which is
`single-profile-handler` where there is one profile and none is named; a profile without a picker
gets the one that `plugins` has, else `max-score-picker`; no profiles at all means one, `default`,
of every filter, scorer and picker in the order written; a name stands once; a reference names an
entry. Ours: nothing is substituted silently, so that of several pickers a profile has to name its
own, and what is not here is refused with what to use instead.
"""

from collections.abc import Mapping, Sequence

from epp.config.located import Located, Location, unknown
from epp.config.picker_config import API_VERSIONS, PickerConfig, PluginRef, ProfileEntry, parse
from epp.errors import ConfigError
from epp.framework import registry
from epp.framework.registry import Kind

from . import elsewhere
from .data import flow
from .default import default_config
from .entries import STABLE_ONLY, Entries, Options, added
from .plan import Plan, ProfilePlan, Use

DEFAULT_PICKER = "max-score-picker"
SINGLE_HANDLER = "single-profile-handler"
DEFAULT_PROFILE = "default"
DEFAULT_DETECTOR = "utilization-detector"
_IN_PROFILES = (Kind.FILTER, Kind.SCORER, Kind.PICKER)
_ON = frozenset({"", "1", "t", "true"})
_OFF = frozenset({"0", "f", "false"})

Weighted = tuple[Use, float]


def resolve(text: bytes, where: str, options: Options = STABLE_ONLY) -> Plan:
    """The plan of a configuration's text. Raises ConfigError with `file:line:column`."""
    config, file = parse(text, where)
    return _Resolver(config, file, options).plan()


def _stands_in_profiles(use: Use) -> bool:
    """Filters, scorers and pickers do, and whatever else filters as well."""
    return use.type.kind in _IN_PROFILES or use.type.keeps


def default_plan() -> Plan:
    """What runs without a configuration."""
    return resolve(default_config(), "default")


class _Resolver:
    def __init__(self, config: PickerConfig, file: Located, options: Options) -> None:
        self._config = config
        self._file = file
        self._entries = Entries(file, options)

    def plan(self) -> Plan:
        entries = self._entries
        self._check_sections()
        for number, entry in enumerate(self._config.plugins):
            entries.enter(number, entry)
        profiles = self._profiles()
        handler = self._handler(profiles)
        producers, consumers = flow(self._config, entries)
        parsers = self._parsers()
        detector, admitters = self._detector(), tuple(entries.of(Kind.ADMITTER))
        entries.mark_used(*(use.reference for use in admitters))
        entries.note_unused()
        return Plan(
            source=self._file.where,
            profiles=profiles,
            handler=handler,
            detector=detector,
            admitters=admitters,
            deciders={use.reference: use for use in entries.of(Kind.DECIDER)},
            producers=producers,
            consumers=consumers,
            parsers=parsers,
            notes=tuple(entries.notes),
        )

    # Profiles

    def _profiles(self) -> dict[str, ProfilePlan]:
        found: dict[str, ProfilePlan] = {}
        for number, entry in enumerate(self._config.scheduling_profiles):
            path: Location = ("schedulingProfiles", number)
            if entry.name in found:
                raise self._file.fault((*path, "name"), f"{entry.name!r} names an earlier profile")
            found[entry.name] = self._profile(entry.name, self._referred(entry, path), path)
        if found:
            return found
        uses = [use for use in self._entries.uses.values() if _stands_in_profiles(use)]
        self._entries.mark_used(*(use.reference for use in uses))
        weighted = [(use, 1.0) for use in uses]
        return {DEFAULT_PROFILE: self._profile(DEFAULT_PROFILE, weighted, ("plugins",))}

    def _referred(self, entry: ProfileEntry, path: Location) -> list[Weighted]:
        found: list[Weighted] = []
        for number, part in enumerate(entry.plugins):
            spot: Location = (*path, "plugins", number)
            use = self._entries.refer(part.plugin_ref, (*spot, "pluginRef"))
            kind = use.type.kind
            if not _stands_in_profiles(use):
                what = f"{use.reference!r} is a {kind}; profiles hold filters, scorers and a picker"
                raise self._file.fault((*spot, "pluginRef"), what)
            if part.weight is not None and kind is not Kind.SCORER:
                what = f"the weight does nothing: {use.reference!r} is a {kind}, not a scorer"
                self._entries.note((*spot, "weight"), what)
            if any(use is earlier for earlier, _ in found):
                what = f"{use.reference!r} stands in this profile already"
                raise self._file.fault((*spot, "pluginRef"), what)
            found.append((use, 1.0 if part.weight is None else part.weight))
        return found

    def _profile(self, name: str, parts: Sequence[Weighted], path: Location) -> ProfilePlan:
        pickers = [use for use, _ in parts if use.type.kind is Kind.PICKER]
        if len(pickers) > 1:
            both = ", ".join(use.reference for use in pickers)
            raise self._file.fault(path, f"profile {name!r} has several pickers: {both}")
        return ProfilePlan(
            name=name,
            filters=tuple(use for use, _ in parts if use.type.keeps),
            scorers=tuple(part for part in parts if part[0].type.kind is Kind.SCORER),
            picker=pickers[0] if pickers else self._picker(name, path),
        )

    def _picker(self, profile: str, path: Location) -> Use:
        """Of a profile that names none."""
        pickers = self._entries.of(Kind.PICKER)
        if len(pickers) > 1:
            several = ", ".join(use.reference for use in pickers)
            what = f"profile {profile!r} has no picker: name one of {several}"
            raise self._file.fault(path, what)
        if pickers:
            self._entries.mark_used(pickers[0].reference)
            return pickers[0]
        return self._added(DEFAULT_PICKER)

    def _handler(self, profiles: Mapping[str, ProfilePlan]) -> Use:
        handlers = self._entries.of(Kind.HANDLER)
        if len(handlers) > 1:
            both = ", ".join(use.reference for use in handlers)
            raise ConfigError(handlers[1].where, f"one profile handler is enough, here are: {both}")
        if not handlers and len(profiles) > 1:
            what = "several profiles need a profile handler, such as disagg-profile-handler"
            raise self._file.fault(("schedulingProfiles",), what)
        use = handlers[0] if handlers else self._added(SINGLE_HANDLER)
        self._entries.mark_used(use.reference)
        deciders = frozenset(one.reference for one in self._entries.of(Kind.DECIDER))
        fault = use.build().fault(frozenset(profiles), deciders)
        if fault:
            where = use.where or self._file.at(("schedulingProfiles",))
            raise ConfigError(where, f"profile handler {use.reference!r}: {fault}")
        return use

    def _added(self, name: str) -> Use:
        """What a rule puts in, under a name that no entry has."""
        taken = self._entries.uses.get(name)
        if taken is not None:
            what = f"{name!r} is a {taken.type.kind} here, and the default of that name is needed"
            raise ConfigError(taken.where, what)
        return added(name)

    # How full the pool is

    def _detector(self) -> Use:
        """The older place counts where the newer one says nothing."""
        flow_control, older = self._config.flow_control, self._config.saturation_detector
        spot: Location = ("flowControl", "saturationDetector", "pluginRef")
        ref = None if flow_control is None else flow_control.saturation_detector
        if older is not None:
            what = "`saturationDetector` is deprecated: use flowControl.saturationDetector"
            self._entries.note(("saturationDetector",), what)
            if ref is None:
                ref, spot = older, ("saturationDetector", "pluginRef")
        name = DEFAULT_DETECTOR if ref is None else ref.plugin_ref
        if name not in self._entries.uses and name in registry.names(Kind.DETECTOR):
            return added(name)
        use = self._entries.refer(name, spot)
        if use.type.kind is not Kind.DETECTOR:
            what = f"{name!r} is a {use.type.kind}, not a saturation detector"
            raise self._file.fault(spot, what)
        return use

    # Parsers

    def _parsers(self) -> tuple[str, ...] | None:
        handler = self._config.request_handler
        refs: list[tuple[PluginRef, Location]] = []
        if handler is not None:
            at: Location = ("requestHandler", "parsers")
            refs = [(ref, (*at, number, "pluginRef")) for number, ref in enumerate(handler.parsers)]
        if self._config.parser is not None:
            self._entries.note(("parser",), "`parser` is deprecated: use requestHandler.parsers")
            refs = refs or [(self._config.parser, ("parser", "pluginRef"))]
        return tuple(dict.fromkeys(self._parser(*ref) for ref in refs)) or None

    def _parser(self, ref: PluginRef, spot: Location) -> str:
        """The family of a parser, which needs no entry when it is named by its type."""
        name = ref.plugin_ref
        if name in self._entries.parsers:
            self._entries.mark_used(name)
            return self._entries.parsers[name]
        if name in self._entries.uses:
            kind = self._entries.uses[name].type.kind
            raise self._file.fault(spot, f"{name!r} is a {kind}, not a parser")
        if name in elsewhere.PARSERS:
            return name
        instead = elsewhere.REFUSED.get(name)
        if instead is not None:
            raise self._file.fault(spot, f"{name!r} is not offered here: {instead}")
        known = [*self._entries.parsers, *elsewhere.PARSERS]
        raise self._file.fault(spot, unknown("parser", name, known))

    # What is not offered

    def _check_sections(self) -> None:
        config, entries = self._config, self._entries
        for number, gate in enumerate(config.feature_gates):
            self._check_gate(gate, ("featureGates", number))
        given = self._file.value.get("flowControl") or {}
        for name, value in given.items():
            if name != "saturationDetector" and value is not None:
                what = f"{name!r} does nothing while the feature gate flowControl is off"
                entries.note(("flowControl", name), what)
        if config.api_version != API_VERSIONS[0]:
            entries.note(("apiVersion",), f"the older group still works; use {API_VERSIONS[0]}")

    def _check_gate(self, gate: str, spot: Location) -> None:
        name, equals, value = gate.partition("=")
        switch = value.strip().lower()
        why = elsewhere.GATES.get(name)
        if why is None:
            raise self._file.fault(spot, unknown("feature gate", name, list(elsewhere.GATES)))
        if switch not in _ON | _OFF or (equals and not switch):
            raise self._file.fault(spot, f"{gate[:64]!r}: expected true or false after the `=`")
        if switch in _ON and why:
            raise self._file.fault(spot, f"{name!r} is not offered here: {why}")
