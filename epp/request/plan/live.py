"""The plan in force, with its plugins built, and the one place where another takes over.

A decision reads `LivePlan.built` once and uses that value to its end, so that a reload never shows
it half of one plan and half of another. Whoever swaps has built the new plan before: a plan with
a fault never gets here.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

from epp.framework import (
    Admitter,
    Decider,
    Detector,
    Filter,
    Follower,
    Handler,
    Marker,
    Picker,
    Scorer,
    Watcher,
)

from .plan import Plan, ProfilePlan, Use

P = TypeVar("P")

_FOLLOWED = frozenset({"session-id", "predicted-latency", "encoder-cache", "served-models"})
"""Data whose producers are asked anew, most of them by each decision."""


@dataclass(frozen=True, slots=True)
class Named(Generic[P]):
    """A plugin under the name that the configuration gives it."""

    name: str
    plugin: P


@dataclass(frozen=True, slots=True)
class Rater(Named[Scorer]):
    """A scorer of a profile."""

    weight: float
    """Finite, not below 0."""
    reads: frozenset[str]
    """Data that it consumes, of `epp.framework.PRODUCED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltProfile:
    """Filters in order, scorers with weights, and who picks; no scorers at all is allowed."""

    name: str
    filters: tuple[Named[Filter], ...]
    scorers: tuple[Rater, ...]
    picker: Named[Picker]

    @property
    def weights(self) -> dict[str, float]:
        return {rater.name: rater.weight for rater in self.scorers}

    def without(self, data: str, name: str) -> Self:
        """The same under another name, less the scorers that read nothing but this data."""
        left = tuple(rater for rater in self.scorers if rater.reads != {data})
        return replace(self, name=name, scorers=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A plan and the plugins that carry it out, one instance for each entry."""

    plan: Plan
    profiles: Mapping[str, BuiltProfile]
    """By name, in the order of the configuration."""
    handler: Named[Handler]
    detector: Named[Detector]
    admitters: tuple[Named[Admitter], ...]
    deciders: Mapping[str, Decider]
    """By the names that `Course.prefill_decider` may hold."""
    producers: Mapping[str, tuple[Named[Any], ...]]
    """Settings of who feeds a kind of data, by the data; where none is named, defaults hold."""
    watchers: tuple[Named[Watcher], ...]
    """Plugins of any kind that want to learn what became of their advice; each stands once."""
    followers: tuple[Named[Follower], ...]
    """Those that want to learn who served in place of who was chosen; each stands once."""
    markers: tuple[Named[Marker], ...]
    """Those that set headers in the client's answer; each stands once."""
    plugins: Mapping[str, "Instance"] = field(repr=False)
    """Every plugin by its name."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A plugin and what it was made from."""

    plugin: Any
    made_from: str


def build(plan: Plan, earlier: Built | None = None) -> Built:
    """Build a plan's plugins. Raises PluginError.

    A plugin whose name, type and parameters are those of `earlier` is kept with what it has
    learned: a reload that changes a weight forgets no session.
    """
    known = {} if earlier is None else earlier.plugins
    plugins: dict[str, Instance] = {}
    for use in _uses(plan):
        made_from = _recipe(use)
        kept = known.get(use.reference)
        if kept is None or kept.made_from != made_from:
            kept = Instance(use.build(), made_from)
        plugins[use.reference] = kept

    def named(use: Use) -> Named[Any]:
        return Named(use.reference, plugins[use.reference].plugin)

    everybody = [Named(name, instance.plugin) for name, instance in plugins.items()]
    return Built(
        plan=plan,
        profiles={name: _profile(profile, plugins) for name, profile in plan.profiles.items()},
        handler=named(plan.handler),
        detector=named(plan.detector),
        admitters=tuple(map(named, plan.admitters)),
        deciders={name: plugins[use.reference].plugin for name, use in plan.deciders.items()},
        producers={data: tuple(map(named, uses)) for data, uses in plan.producers.items()},
        watchers=tuple(one for one in everybody if isinstance(one.plugin, Watcher)),
        followers=tuple(one for one in everybody if isinstance(one.plugin, Follower)),
        markers=tuple(one for one in everybody if isinstance(one.plugin, Marker)),
        plugins=plugins,
    )


class LivePlan:
    """The plan in force."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._swaps = 0

    @property
    def built(self) -> Built:
        """Read once per decision."""
        return self._built

    @property
    def plan(self) -> Plan:
        return self._built.plan

    @property
    def swaps(self) -> int:
        """How often another plan took over."""
        return self._swaps

    def swap(self, built: Built) -> None:
        """From the next decision on, this one."""
        self._built = built
        self._swaps += 1


def unfollowed(before: Built, after: Built) -> tuple[str, ...]:
    """Producers whose settings differ and that the state path reads once, when the picker starts.

    Sessions, limits and media are read by each decision from the plan in force, and pages of models
    are read as it says.
    """

    def settings(built: Built) -> set[tuple[str, str]]:
        fed = built.plan.producers.items()
        names = {use.reference for data, uses in fed if data not in _FOLLOWED for use in uses}
        return {(name, built.plugins[name].made_from) for name in names}

    return tuple(sorted({name for name, _ in settings(before) ^ settings(after)}))


def _uses(plan: Plan) -> Iterable[Use]:
    """Every plugin of a plan, some of them more than once."""
    for profile in plan.profiles.values():
        yield from profile.filters
        yield from (use for use, _ in profile.scorers)
        yield profile.picker
    yield plan.handler
    yield plan.detector
    yield from plan.admitters
    yield from plan.deciders.values()
    for uses in plan.producers.values():
        yield from uses


def _profile(plan: ProfilePlan, plugins: Mapping[str, Instance]) -> BuiltProfile:
    def named(use: Use) -> Named[Any]:
        return Named(use.reference, plugins[use.reference].plugin)

    return BuiltProfile(
        name=plan.name,
        filters=tuple(named(use) for use in plan.filters),
        scorers=tuple(
            Rater(use.reference, plugins[use.reference].plugin, weight, use.type.consumes)
            for use, weight in plan.scorers
        ),
        picker=named(plan.picker),
    )


def _recipe(use: Use) -> str:
    """Equal for equal types with equal parameters, however the configuration orders them."""
    return f"{use.type.name} {json.dumps(use.parameters, sort_keys=True, default=repr)}"
