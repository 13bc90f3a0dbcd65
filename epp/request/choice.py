"""Who serves an understood request: the steps of the ladder, and both halves of a split one.

By prefix where the request can be scored, else by load, and where even that fails any ready
endpoint serves. Nothing is booked here, so that one may also ask what would happen.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import structlog

from epp.errors import BadRequest, Refusal
from epp.framework import (
    Candidates,
    Chance,
    Course,
    Decision,
    Endpoint,
    NoCourse,
    Request,
    Rung,
    Stage,
    sample,
)

from . import filters, saturation, split
from .ballot import Ballot, Why
from .exchange import Arrival
from .neighbours import Pool
from .plan.live import Built, BuiltProfile
from .profiles import Mode
from .schedule import Selection, schedule
from .understanding import Understood

MAX_EXCLUDED = 16
"""Endpoints that a decision names for each reason against them."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request with all that a decision about it depends on."""

    arrival: Arrival
    request: Request
    told: str
    """What is known of its tokens, for the reasons."""
    built: Built
    course: Course
    mode: Mode


class Choice:
    """Owned by the director. `failed` is told when a step of our own raises."""

    def __init__(
        self,
        *,
        pool: Pool,
        chance: Chance,
        clock: Callable[[], float],
        ballot: Ballot,
        failed: Callable[[str], None],
        count: int,
        rows: int,
    ) -> None:
        """`count`: endpoints named where any serves; elsewhere pickers say. `rows`: most candidates
        in a decision's table."""
        self._pool = pool
        self._chance = chance
        self._clock = clock
        self._ballot = ballot
        self._failed = failed
        self._count = count
        self._rows = rows

    def of(
        self, arrival: Arrival, understood: Understood, built: Built, mode: Mode, *, late: bool
    ) -> tuple[Decision, str, Course]:
        """The decision, why it knew no more, and the course that it took.

        Raises NoEndpoint, and BadRequest for a request that asks for what is not there. `late`:
        there is no time left to look at prefixes.
        """
        self._ballot.begin()
        request, why = understood.request, understood.why
        course = self._course(request, built)
        asked = Asked(
            arrival=arrival,
            request=request,
            told=understood.told,
            built=built,
            course=course,
            mode=mode,
        )
        if mode is not Mode.NORMAL:
            why = "mode"
        elif request.scored and late:
            why = "late"
        elif request.scored:
            scored = self.attempt("score", lambda: self._by_prefix(asked))
            if scored is not None:
                return scored, why, course
            why = "failed"
        asked = replace(asked, told=understood.told if why == "unscored" else why)
        if mode is not Mode.RANDOM:
            loaded = self.attempt("load", lambda: self._by_load(asked))
            if loaded is not None:
                return loaded, why, course
            why = "failed"
            asked = replace(asked, told=why)
        return self._any(asked), why, course

    def admit(self, arrival: Arrival, request: Request, built: Built) -> None:
        """Raises Saturated where an admitter refuses the request, and NoEndpoint."""
        found = self._pool.candidates(
            request.keys,
            block_tokens=request.block_size,
            prompt_tokens=request.prompt_tokens,
            now=self._clock(),
        )
        decoders = filters.decoders(filters.eligible(found, arrival.subset, request.failed_at))
        saturation.admit(request, built.admitters, decoders, self._chance, self._ballot)

    def attempt(self, step: str, work: Callable[[], T]) -> T | None:
        """The result of a step, or None where it raised: our own fault, survived and counted."""
        try:
            return work()
        except Refusal:
            raise
        except Exception:
            log.exception("a step of a decision failed", step=step)
            self._failed(step)
            return None

    def _course(self, request: Request, built: Built) -> Course:
        """As the profile handler says; the first profile where it fails."""
        handler, names = built.handler, tuple(built.profiles)
        try:
            course = self._ballot.ask(handler.name, lambda: handler.plugin.course(request, names))
        except NoCourse as error:
            raise BadRequest(str(error)) from None
        if course is None:
            return Course(destination=names[0])
        if not _known(course, built):
            self._ballot.blame(handler.name, Why.WRONG_SHAPE)
            return Course(destination=names[0])
        return course

    def _by_prefix(self, asked: Asked) -> Decision:
        now, request = self._clock(), asked.request
        twins = self._pool.twins(request.keys, now)
        if twins:
            request = replace(request, twins=twins)
        found = self._pool.candidates(
            request.keys,
            block_tokens=request.block_size,
            prompt_tokens=request.prompt_tokens,
            now=now,
        )
        eligible = filters.eligible(found, asked.arrival.subset, request.failed_at)
        profile = asked.built.profiles[asked.course.destination]
        ahead = self._ahead(request, eligible, asked)
        chosen = self._rated(request, eligible, profile, ahead)
        rung = self._pool.rung(chosen.chosen[0].id, now)
        if not request.exact:
            rung = max(rung, Rung.PREDICTED)
        reasons = (*chosen.reasons, f"tokens {asked.told}")
        parts = self._parts(request, chosen.chosen, eligible, asked, ahead)
        return _decision(asked, profile, chosen, parts, rung=rung, reasons=reasons)

    def _by_load(self, asked: Asked) -> Decision:
        request = replace(asked.request, scored=False)
        eligible = self._ready(asked)
        profile = asked.built.profiles[asked.course.destination]
        profile = profile.without("prefix-match", "load-only")
        ahead = self._ahead(request, eligible, asked)
        chosen = self._rated(request, eligible, profile, ahead)
        reasons = (f"load only: {asked.told}", *chosen.reasons)
        parts = self._parts(request, chosen.chosen, eligible, asked, ahead)
        return _decision(asked, profile, chosen, parts, rung=Rung.LOAD_ONLY, reasons=reasons)

    def _any(self, asked: Asked) -> Decision:
        """Any endpoint that may answer is as good as another."""
        eligible = self._ready(asked)
        decoders = filters.decoders(eligible)
        rows = sample(range(len(decoders)), self._count, self._chance)
        chosen = tuple(decoders[row] for row in rows)
        parts = self._parts(asked.request, chosen, eligible, asked)
        excluded, left_out = _excluded(decoders)
        return Decision(
            request_id=asked.request.id,
            chosen=chosen,
            rung=Rung.ANY_READY,
            reasons=(f"any of {len(decoders)} ready", asked.told, *parts.reasons),
            plan=asked.built.plan.source,
            handler=asked.built.handler.name,
            profile="random",
            excluded=excluded,
            left_out=left_out,
            prefilling=parts.prefilling,
            encoding=parts.encoding,
        )

    def _ahead(self, request: Request, eligible: Candidates, asked: Asked) -> split.Part | None:
        """Who prefills, where the course wants that to be chosen first; else None."""
        if not asked.course.prefill_first:
            return None
        wish = self._wish(request, (), eligible, asked)
        return self.attempt("split", lambda: split.ahead(wish)) or _FAILED

    def _rated(
        self,
        request: Request,
        eligible: Candidates,
        profile: BuiltProfile,
        ahead: split.Part | None,
    ) -> Selection:
        decoders = filters.decoders(eligible)
        prefiller = None if ahead is None else ahead.first
        if prefiller is not None:
            others = filters.others(decoders, {prefiller.address})
            if others:
                decoders, request = others, replace(request, peer=prefiller, prefilled=True)
        return schedule(request, decoders, profile, self._chance, self._ballot, rows=self._rows)

    def _parts(
        self,
        request: Request,
        chosen: tuple[Endpoint, ...],
        eligible: Candidates,
        asked: Asked,
        ahead: split.Part | None = None,
    ) -> "_Parts":
        """Who does parts of the work for the `chosen`, or why nobody. `ahead`: who prefills was
        chosen before."""
        wish = self._wish(request, chosen, eligible, asked)
        course = asked.course
        if ahead is not None:
            prefilling = split.settled(ahead, chosen[0])
        else:
            prefilling = self.attempt("split", lambda: split.prefill(wish)) or _FAILED
        encoding = split.NEVER
        if course.encode:
            encoding = self.attempt("encode", lambda: split.encode(wish)) or _FAILED
        return _Parts(
            prefilling=_stage(prefilling, course.prefill, course.prefill_decider, eligible),
            encoding=_stage(encoding, course.encode, course.encode_decider, eligible),
            reasons=(*prefilling.reasons, *encoding.reasons),
        )

    def _wish(
        self,
        request: Request,
        chosen: tuple[Endpoint, ...],
        eligible: Candidates,
        asked: Asked,
    ) -> split.Wish:
        return split.Wish(
            request=request,
            destinations=chosen,
            eligible=eligible,
            built=asked.built,
            course=asked.course,
            chance=self._chance,
            ballot=self._ballot,
            normal=asked.mode is Mode.NORMAL,
        )

    def _ready(self, asked: Asked) -> Candidates:
        ready = self._pool.ready(self._clock())
        return filters.eligible(ready, asked.arrival.subset, asked.request.failed_at)


_FAILED = split.Part(why=split.Why.FAILED)
"""A failure of ours costs the split, and not the request."""


@dataclass(slots=True, kw_only=True)
class _Parts:
    """What others than the destination do."""

    prefilling: Stage
    encoding: Stage
    reasons: tuple[str, ...] = ()


def _stage(part: split.Part, profile: str, decider: str, eligible: Candidates) -> Stage:
    if part.left is None:
        return _undone(part.why, profile, decider)
    excluded, left_out = _excluded(part.left, since=eligible)
    found = part.selection
    return Stage(
        why=part.why,
        chosen=found.chosen if found is not None and part.why == split.Why.SPLIT else (),
        decider=decider,
        profile=profile,
        table=() if found is None else found.table,
        weights={} if found is None else found.weights,
        excluded=excluded,
        left_out=left_out,
    )


@lru_cache(maxsize=256)
def _undone(why: str, profile: str, decider: str) -> Stage:
    """Where nobody looked for others: there are few such, and every request has two."""
    return Stage(why=why, decider=decider, profile=profile)


def _known(course: Course, built: Built) -> bool:
    """Whether all that it names is there."""
    profiles, deciders = built.profiles, built.deciders
    return (
        course.destination in profiles
        and (not course.prefill or course.prefill in profiles)
        and (not course.encode or course.encode in profiles)
        and (not course.prefill_decider or course.prefill_decider in deciders)
        and (not course.encode_decider or course.encode_decider in deciders)
    )


def _excluded(
    left: Candidates | None, since: Candidates | None = None
) -> tuple[tuple[tuple[str, str], ...], dict[str, int]]:
    """Who was left out on the way to these, for `Decision.excluded` and `Decision.left_out`."""
    steps = [] if left is None else left.excluded(MAX_EXCLUDED, since)
    if not steps:
        return (), {}
    counts: dict[str, int] = {}
    for why, count, _ in steps:
        counts[why] = counts.get(why, 0) + count
    return tuple((address, why) for why, _, named in steps for address in named), counts


def _decision(
    asked: Asked,
    profile: BuiltProfile,
    chosen: Selection,
    parts: _Parts,
    *,
    rung: Rung,
    reasons: tuple[str, ...],
) -> Decision:
    excluded, left_out = _excluded(chosen.left)
    return Decision(
        request_id=asked.request.id,
        chosen=chosen.chosen,
        rung=rung,
        reasons=(*reasons, *parts.reasons),
        table=chosen.table,
        excluded=excluded,
        left_out=left_out,
        plan=asked.built.plan.source,
        handler=asked.built.handler.name,
        profile=profile.name,
        weights=chosen.weights,
        prefilling=parts.prefilling,
        encoding=parts.encoding,
    )
