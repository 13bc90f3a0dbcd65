"""Whether a prompt is computed by another endpoint than the one that answers, and by whom. Pure.

The destination is chosen first, as for any request. A decider says whether the rest is worth a
handoff; a profile of its own rates who could compute it. Where nobody can, the destination computes
all of it and the reason says so (fault D07).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from epp.framework import Candidates, Chance, Comparer, Course, Endpoint, Request

from . import filters
from .ballot import Ballot
from .ballot import Why as Fault
from .plan.live import Built
from .schedule import Selection, schedule

_WORD = re.compile(r"[a-z][a-z0-9-]{0,31}")


class Why(StrEnum):
    """The reason in a decision and in `epp_split_decisions_total`, beside the words of deciders."""

    SPLIT = "split"
    NEVER = "never"
    """The profile handler asks for none."""
    MODE = "mode"
    """A break-glass mode is on."""
    NOT_SPLITTABLE = "not-splittable"
    """One engine must compute all of it; `Request.whole` says why."""
    NO_SIDECAR = "no-sidecar"
    """Nobody stands before the destination's engine who could hand over."""
    NO_PREFILL_PODS = "no-prefill-pods"
    """None is ready, or none that the gateway allows for this request, or none that is left by the
    filters of its profile."""
    FAILED = "failed"
    """The decider failed, or rating the prefill candidates did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Who computes the prompt in the destination's place, or why nobody does."""

    why: str
    selection: Selection | None = None
    """Who would do it best; who does it, where `why` is SPLIT."""
    left: Candidates | None = None
    """Who was left of the endpoints that were looked at; None: nobody looked."""
    reasons: tuple[str, ...] = field(default=())


def prefill(
    request: Request,
    destinations: tuple[Endpoint, ...],
    eligible: Candidates,
    *,
    built: Built,
    course: Course,
    chance: Chance,
    ballot: Ballot,
    normal: bool,
) -> Part:
    """Choose who prefills for the first of `destinations`.

    `eligible`: the ready endpoints that the gateway allows, whatever their role. `normal`: no
    break-glass mode is on.
    """
    destination = destinations[0]
    why = _verdict(request, destination, built, course, ballot, normal=normal)
    if why != Why.SPLIT:
        return Part(why=why)
    profile = built.profiles[course.prefill]
    found = filters.others(eligible, {one.address for one in destinations})
    if not profile.filters:
        found = filters.prefillers(found)
    if not found:
        return Part(why=Why.NO_PREFILL_PODS, left=found)
    for_peer = replace(request, peer=destination)
    selection = schedule(for_peer, found, profile, chance, ballot, must=False)
    if not selection.chosen:
        return Part(why=Why.NO_PREFILL_PODS, left=selection.left)
    why = _last_word(for_peer, selection.chosen[0], built, course, ballot)
    if why != Why.SPLIT:
        return Part(why=why, selection=selection, left=selection.left)
    told = f"{destination.match.missing(request.prompt_tokens):.0f} uncached tokens"
    reason = f"split: {told}; prefill: {', '.join(selection.reasons)}"
    return Part(why=Why.SPLIT, selection=selection, left=selection.left, reasons=(reason,))


def _verdict(
    request: Request,
    destination: Endpoint,
    built: Built,
    course: Course,
    ballot: Ballot,
    *,
    normal: bool,
) -> str:
    """SPLIT, or the reason against it, before anybody has looked for prefill endpoints."""
    if not course.prefill:
        return Why.NEVER
    if not normal:
        return Why.MODE
    if request.whole:
        return Why.NOT_SPLITTABLE
    name = course.prefill_decider
    if name:
        decider = built.deciders[name]
        word = _word(name, ballot, lambda: decider.decide(request, destination))
        if word != Why.SPLIT:
            return word
    return Why.SPLIT if destination.has_sidecar else Why.NO_SIDECAR


def _last_word(
    for_peer: Request, prefill: Endpoint, built: Built, course: Course, ballot: Ballot
) -> str:
    """What a decider that compares says of the pair; the others have said all they know."""
    name, destination = course.prefill_decider, for_peer.peer
    decider = built.deciders.get(name)
    if destination is None or not isinstance(decider, Comparer):
        return Why.SPLIT
    return _word(name, ballot, lambda: decider.compare(for_peer, destination, prefill))


def _word(name: str, ballot: Ballot, ask: Callable[[], str]) -> str:
    word = ballot.ask(name, ask)
    if word is None:
        return Why.FAILED
    if not isinstance(word, str) or not _WORD.fullmatch(word):
        ballot.blame(name, Fault.NO_WORD)
        return Why.FAILED
    return word
