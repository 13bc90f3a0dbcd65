"""Whether others than the endpoint that answers do a part of its work, and who. Pure.

The destination is chosen first, as for any request, unless the course asks for who prefills before
it. Of its prompt another endpoint may compute all (*prefill*), and of its images, audio and video
others may compute the embeddings (*encode*). For each of the two a decider says whether that is
worth a handoff; a profile of its own rates who could do it. Where nobody can, the destination does
it itself and the reason says so (fault D07).
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
    """The reason in a decision, in `epp_split_decisions_total` and in
    `epp_encode_decisions_total`, beside the words of deciders."""

    SPLIT = "split"
    NEVER = "never"
    """The profile handler asks for none."""
    MODE = "mode"
    """A break-glass mode is on."""
    NOT_SPLITTABLE = "not-splittable"
    """One engine must compute all of it; `Request.whole` says why."""
    NO_MEDIA = "no-media"
    """There is nothing to encode."""
    NO_SIDECAR = "no-sidecar"
    """Nobody stands before the destination's engine who could hand over."""
    NO_PREFILL_PODS = "no-prefill-pods"
    """None is ready, or none that the gateway allows for this request, or none that is left by the
    filters of its profile."""
    NO_ENCODE_PODS = "no-encode-pods"
    """Likewise."""
    FAILED = "failed"
    """The decider failed, or rating the candidates did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Who does a part in the destination's place, or why nobody does."""

    why: str
    selection: Selection | None = None
    """Who would do it best; who does it, where `why` is SPLIT."""
    left: Candidates | None = None
    """Who was left of the endpoints that were looked at; None: nobody looked."""
    reasons: tuple[str, ...] = field(default=())

    @property
    def first(self) -> Endpoint | None:
        """Who does it; None where nobody else does."""
        if self.selection is None or self.why != Why.SPLIT:
            return None
        return self.selection.chosen[0]


@dataclass(slots=True, kw_only=True)
class Wish:
    """One request with all that its parts depend on."""

    request: Request
    destinations: tuple[Endpoint, ...]
    """The first of them is who would hand over; empty as long as they are not known."""
    eligible: Candidates
    """The ready endpoints that the gateway allows, whatever their role."""
    built: Built
    course: Course
    chance: Chance
    ballot: Ballot
    normal: bool
    """No break-glass mode is on."""


NEVER = Part(why=Why.NEVER)
"""The course asks for nobody."""
_NOT_SPLITTABLE = Part(why=Why.NOT_SPLITTABLE)
_NO_MEDIA = Part(why=Why.NO_MEDIA)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """What differs between the two parts."""

    able: Callable[[Candidates], Candidates]
    """Who may do it, for a profile without filters."""
    nobody: Why
    told: Callable[[Wish], str]
    """What the reason begins with."""


def prefill(wish: Wish) -> Part:
    """Choose who prefills for the first destination."""
    if not wish.course.prefill:
        return NEVER
    if wish.normal and wish.request.whole:
        return _NOT_SPLITTABLE
    course = wish.course
    return _part(wish, _PREFILL, course.prefill, course.prefill_decider)


def ahead(wish: Wish) -> Part:
    """Choose who prefills for a destination that is not known yet; see `settled`."""
    if not wish.normal:
        return Part(why=Why.MODE)
    if wish.request.whole:
        return Part(why=Why.NOT_SPLITTABLE)
    profile = wish.built.profiles[wish.course.prefill]
    found = wish.eligible if profile.filters else filters.prefillers(wish.eligible)
    if not found:
        return Part(why=Why.NO_PREFILL_PODS, left=found)
    selection = schedule(wish.request, found, profile, wish.chance, wish.ballot, must=False)
    if not selection.chosen:
        return Part(why=Why.NO_PREFILL_PODS, left=selection.left)
    reason = f"prefill first: {', '.join(selection.reasons)}"
    return Part(why=Why.SPLIT, selection=selection, left=selection.left, reasons=(reason,))


def settled(part: Part, destination: Endpoint) -> Part:
    """What `ahead` chose, for this destination: nobody hands a prompt over to itself."""
    if part.selection is None or part.why != Why.SPLIT:
        return part
    if not destination.has_sidecar:
        return Part(why=Why.NO_SIDECAR, selection=part.selection, left=part.left)
    chosen = tuple(one for one in part.selection.chosen if one.id != destination.id)
    if not chosen:
        return Part(why=Why.NO_PREFILL_PODS, selection=part.selection, left=part.left)
    return replace(part, selection=replace(part.selection, chosen=chosen))


def encode(wish: Wish) -> Part:
    """Choose who encodes media for the first destination."""
    if not wish.course.encode:
        return NEVER
    if wish.normal and not wish.request.media_tokens:
        return _NO_MEDIA
    course = wish.course
    return _part(wish, _ENCODE, course.encode, course.encode_decider)


def _uncached(wish: Wish) -> str:
    lacks = wish.destinations[0].match.missing(wish.request.prompt_tokens)
    return f"split: {lacks:.0f} uncached tokens; prefill"


def _unencoded(wish: Wish) -> str:
    return f"media of {wish.request.media_tokens} tokens elsewhere; encode"


_PREFILL = _Stage(able=filters.prefillers, nobody=Why.NO_PREFILL_PODS, told=_uncached)
_ENCODE = _Stage(able=filters.encoders, nobody=Why.NO_ENCODE_PODS, told=_unencoded)


def _part(wish: Wish, stage: _Stage, profile_name: str, decider: str) -> Part:
    why = _verdict(wish, decider)
    if why != Why.SPLIT:
        return Part(why=why)
    profile = wish.built.profiles[profile_name]
    found = filters.others(wish.eligible, {one.address for one in wish.destinations})
    if not profile.filters:
        found = stage.able(found)
    if not found:
        return Part(why=stage.nobody, left=found)
    for_peer = replace(wish.request, peer=wish.destinations[0])
    selection = schedule(for_peer, found, profile, wish.chance, wish.ballot, must=False)
    if not selection.chosen:
        return Part(why=stage.nobody, left=selection.left)
    why = _last_word(wish, decider, for_peer, selection.chosen[0])
    if why != Why.SPLIT:
        return Part(why=why, selection=selection, left=selection.left)
    reason = f"{stage.told(wish)}: {', '.join(selection.reasons)}"
    return Part(why=Why.SPLIT, selection=selection, left=selection.left, reasons=(reason,))


def _verdict(wish: Wish, decider: str) -> str:
    """SPLIT, or the reason against it, before anybody has looked for other endpoints."""
    if not wish.normal:
        return Why.MODE
    destination = wish.destinations[0]
    if decider:
        asked = wish.built.deciders[decider]
        word = _word(wish, decider, lambda: asked.decide(wish.request, destination))
        if word != Why.SPLIT:
            return word
    return Why.SPLIT if destination.has_sidecar else Why.NO_SIDECAR


def _last_word(wish: Wish, decider: str, for_peer: Request, best: Endpoint) -> str:
    """What a decider that compares says of the pair; the others have said all they know."""
    asked = wish.built.deciders.get(decider)
    if not isinstance(asked, Comparer):
        return Why.SPLIT
    return _word(wish, decider, lambda: asked.compare(for_peer, wish.destinations[0], best))


def _word(wish: Wish, decider: str, ask: Callable[[], str]) -> str:
    word = wish.ballot.ask(decider, ask)
    if word is None:
        return Why.FAILED
    if not isinstance(word, str) or not _WORD.fullmatch(word):
        wish.ballot.blame(decider, Fault.NO_WORD)
        return Why.FAILED
    return word
