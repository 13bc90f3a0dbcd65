"""What a plan will do, for people and for machines. Pure."""

from collections.abc import Iterator
from typing import Any

import msgspec

from epp.framework.registry import Stability

from .data import DEFAULTS
from .plan import Plan, ProfilePlan, Use

_READ_ANYWAY = {"endpoints": "every decision"}


def document(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON values; the keys are stable."""
    return {
        "source": plan.source,
        "handler": _plugin(plan.handler),
        "profiles": [_profile(profile) for profile in plan.profiles.values()],
        "deciders": [_plugin(use) for use in plan.deciders.values()],
        "detector": _plugin(plan.detector),
        "admitters": [_plugin(use) for use in plan.admitters],
        "data": [
            {
                "name": data,
                "from": [_plugin(use) for use in plan.producers.get(data, ())],
                "default": "" if data in plan.producers else DEFAULTS[data],
                "to": list(plan.consumers.get(data, ())),
            }
            for data in _data(plan)
        ],
        "parsers": None if plan.parsers is None else list(plan.parsers),
        "notes": list(plan.notes),
    }


def text(plan: Plan) -> str:
    """The same as lines to read."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    yield f"{plan.source} can be used."
    yield ""
    yield f"handler   {_named(plan.handler)}"
    for use in plan.deciders.values():
        yield f"decider   {_named(use)}"
    yield f"detector  {_named(plan.detector)}"
    for use in plan.admitters:
        yield f"admitter  {_named(use)}"
    for profile in plan.profiles.values():
        yield ""
        yield f"profile   {profile.name}"
        for use in profile.filters:
            yield f"  filter  {_named(use)}"
        for use, weight in profile.scorers:
            yield f"  scorer  {weight:g} x {_named(use)}"
        yield f"  picker  {_named(profile.picker)}"
    yield ""
    yield "data"
    for data in _data(plan):
        uses = plan.producers.get(data, ())
        source = ", ".join(map(_named, uses)) or f"(by default) {DEFAULTS[data]}"
        readers = ", ".join(plan.consumers.get(data, ())) or _READ_ANYWAY.get(data, "nobody")
        yield f"  {data}: {source} -> {readers}"
    yield ""
    parsers = plan.parsers or ("OpenAI's, Anthropic's, vLLM's", "and a pass for unknown paths")
    yield f"parsers   {', '.join(parsers)}"
    if plan.notes:
        yield ""
        yield "notes"
        yield from (f"  {note}" for note in plan.notes)


def _data(plan: Plan) -> list[str]:
    return [data for data in DEFAULTS if data in plan.producers or data in plan.consumers]


def _named(use: Use) -> str:
    kind = "" if use.reference == use.type.name else f" ({use.type.name})"
    given = f" {msgspec.json.encode(use.parameters).decode()}" if use.parameters else ""
    stability = use.type.stability
    firm = "" if stability is Stability.STABLE else f" ({stability})"
    return f"{use.reference}{kind}{given}{firm}{' (by default)' if use.added else ''}"


def _plugin(use: Use) -> dict[str, Any]:
    return {
        "name": use.reference,
        "type": use.type.name,
        "stability": str(use.type.stability),
        "parameters": dict(use.parameters),
        "added": use.added,
    }


def _profile(profile: ProfilePlan) -> dict[str, Any]:
    return {
        "name": profile.name,
        "filters": [_plugin(use) for use in profile.filters],
        "scorers": [_plugin(use) | {"weight": weight} for use, weight in profile.scorers],
        "picker": _plugin(profile.picker),
    }
