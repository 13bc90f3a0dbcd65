"""The order of steps of one decision, and what becomes of the request afterwards.

Parse, write the model's other name, find tokens and keys, look up the candidates, keep to the
gateway's subset and to those that decode, rate, see whether somebody else should prefill, charge,
answer. Each step has a way down the ladder (DESIGN section 2): late or failing tokens give an
estimate or load alone, a failing plugin gives load alone, and where even that fails any ready
endpoint serves. Refused are a request that is wrong, a pool with nobody in it, and a request that
would have to be changed when there is no time for that.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from epp import protocol
from epp.errors import Refusal
from epp.framework import Decision, Endpoint, Request, Rung

from . import conformance, filters, hints, split
from .apis import catalog
from .exchange import Arrival, Outcome, Route
from .flight import Flight
from .neighbours import Meters, Observer, Pool
from .offload import Offload
from .pickers import Chance
from .profiles import Mode, ModeSwitch
from .schedule import MAX_ROWS, Profile, draw, schedule
from .settings import PickSettings
from .tokens import Tokens
from .understanding import Understanding, Understood

__all__ = ["PickDirector", "PickSettings"]

T = TypeVar("T")

log = structlog.get_logger(__name__)


def new_id() -> str:
    """128 random bits in hex: unique over restarts and replicas."""
    return os.urandom(16).hex()


class PickDirector:
    """Implements `exchange.Director` over the mirror of one pool."""

    def __init__(
        self,
        *,
        pool: Pool,
        tokens: Tokens,
        offload: Offload,
        switch: ModeSwitch,
        profile: Profile,
        load_only: Profile,
        prefill: Profile,
        chance: Chance,
        clock: Callable[[], float],
        observers: Sequence[Observer] = (),
        meters: Meters | None = None,
        settings: PickSettings | None = None,
        rules: catalog.Rules = catalog.ANY,
        split_rules: split.SplitRules | None = None,
        ids: Callable[[], str] = new_id,
    ) -> None:
        self._pool = pool
        self._switch = switch
        self._profile = profile
        self._load_only = load_only
        self._prefill = prefill
        self._split_rules = split_rules or split.SplitRules()
        self._chance = chance
        self._clock = clock
        self._observers = tuple(observers)
        self._meters = meters
        self._settings = settings or PickSettings()
        self._rows = sys.maxsize if self._settings.emit_scores else MAX_ROWS
        self._understanding = Understanding(
            tokens=tokens,
            offload=offload,
            rules=rules,
            settings=self._settings,
            clock=clock,
            ids=ids,
            failed=self._failed,
        )

    async def decide(self, arrival: Arrival) -> Outcome:
        """Route one request, or refuse it. Raises only where not even the pool can be read."""
        started = self._clock()
        mode = self._switch.mode
        arrival = self._within(arrival)
        said = hints.read(arrival.headers)
        for header in said.ignored:
            for observer in self._observers:
                observer.ignored(header)
        try:
            understood = await self._understanding.of(
                arrival, said, score=mode is Mode.NORMAL, started=started
            )
            decision, why = self._choose(arrival, understood, mode, started)
        except Refusal as refusal:
            for observer in self._observers:
                observer.refused(refusal)
            return refusal
        decision = replace(decision, reasons=(*decision.reasons, *understood.notes))
        return self._route(arrival, understood, decision, why, started)

    def _within(self, arrival: Arrival) -> Arrival:
        """The request with those endpoints as its subset that count here."""
        subset = arrival.subset if self._settings.subset_filter else None
        if self._settings.conformance:
            subset = conformance.selection(arrival.headers) or subset
        return arrival if subset == arrival.subset else replace(arrival, subset=subset)

    def _choose(
        self, arrival: Arrival, understood: Understood, mode: Mode, started: float
    ) -> tuple[Decision, str]:
        """Walk down the ladder until a step gives a decision. Raises NoEndpoint."""
        request, why = understood.request, understood.why
        if mode is not Mode.NORMAL:
            why = "mode"
        elif request.scored and self._understanding.left_s(started) <= 0.0:
            why = "late"
        elif request.scored:
            scored = self._attempt(
                "score", lambda: self._by_prefix(arrival, request, understood.told)
            )
            if scored is not None:
                return scored, why
            why = "failed"
        told = understood.told if why == "unscored" else why
        if mode is not Mode.RANDOM:
            loaded = self._attempt("load", lambda: self._by_load(arrival, request, told, mode))
            if loaded is not None:
                return loaded, why
            why = told = "failed"
        eligible = self._ready(arrival)
        decision = draw(request, filters.decoders(eligible), self._chance, count=self._count)
        decision = replace(decision, reasons=(*decision.reasons, told))
        return self._with_prefill(decision, request, eligible, mode), why

    def _by_prefix(self, arrival: Arrival, request: Request, told: str) -> Decision:
        now = self._clock()
        found = self._pool.candidates(
            request.keys,
            block_tokens=request.block_size,
            prompt_tokens=request.prompt_tokens,
            now=now,
        )
        eligible = filters.eligible(found, arrival.subset)
        decoders = filters.decoders(eligible)
        decision = schedule(
            request, decoders, self._profile, self._chance, count=self._count, rows=self._rows
        )
        rung = self._pool.rung(decision.chosen[0].id, now)
        if not request.exact:
            rung = max(rung, Rung.PREDICTED)
        decision = replace(decision, rung=rung, reasons=(*decision.reasons, f"tokens {told}"))
        return self._with_prefill(decision, request, eligible, Mode.NORMAL)

    def _by_load(self, arrival: Arrival, request: Request, told: str, mode: Mode) -> Decision:
        request = replace(request, scored=False)
        eligible = self._ready(arrival)
        decision = schedule(
            request,
            filters.decoders(eligible),
            self._load_only,
            self._chance,
            rung=Rung.LOAD_ONLY,
            count=self._count,
            rows=self._rows,
        )
        decision = replace(decision, reasons=(f"load only: {told}", *decision.reasons))
        return self._with_prefill(decision, request, eligible, mode)

    def _with_prefill(
        self, decision: Decision, request: Request, eligible: list[Endpoint], mode: Mode
    ) -> Decision:
        """The decision with its other half, or without: a failure here costs the split alone."""
        whole = self._attempt(
            "split",
            lambda: split.with_prefill(
                decision,
                request,
                eligible,
                profile=self._prefill,
                rules=self._split_rules,
                chance=self._chance,
                normal=mode is Mode.NORMAL,
            ),
        )
        return whole or replace(decision, split=split.Why.FAILED)

    def _ready(self, arrival: Arrival) -> list[Endpoint]:
        return filters.eligible(self._pool.ready(self._clock()), arrival.subset)

    @property
    def _count(self) -> int:
        return self._settings.destinations

    def _route(
        self,
        arrival: Arrival,
        understood: Understood,
        decision: Decision,
        why: str,
        started: float,
    ) -> Route:
        now = self._clock()
        request, first = understood.request, decision.chosen[0]
        prefill = decision.prefill[0] if decision.prefill else None
        charged = bool(arrival.body) or arrival.body_hidden
        if charged:
            self._attempt(
                "charge",
                lambda: self._pool.charge(
                    first, request, now, **({"prefill": prefill} if prefill else {})
                ),
            )
        scores: tuple[tuple[str, float], ...] = ()
        if self._settings.emit_scores:
            scores = tuple((row.address, row.total) for row in decision.table)
            decision = replace(decision, table=decision.table[:MAX_ROWS])
        for observer in self._observers:
            observer.decided(decision, request, why, now - started)
        meter = None
        if self._meters is not None and arrival.answer_shown and charged:
            meter = self._meters(request, len(arrival.body), started)
        flight = Flight(
            pool=self._pool,
            observers=self._observers,
            clock=self._clock,
            request=request,
            chosen=decision.chosen,
            charged=charged,
            meter=meter,
            say_served=self._settings.conformance,
        )
        return Route(
            destination=",".join(endpoint.address for endpoint in decision.chosen),
            progress=flight,
            set_headers=_headers(decision),
            body=understood.body,
            scores=scores,
            model=understood.model,
        )

    def _attempt(self, step: str, work: Callable[[], T]) -> T | None:
        """The result of a step, or None where it raised: our own fault, survived and counted."""
        try:
            return work()
        except Refusal:
            raise
        except Exception:
            log.exception("a step of a decision failed", step=step)
            self._failed(step)
            return None

    def _failed(self, step: str) -> None:
        for observer in self._observers:
            observer.failed(step)


def _headers(decision: Decision) -> tuple[tuple[str, str], ...]:
    """What the destination's sidecar is told: nothing that a client wrote (A23)."""
    computes = (decision.prefill or decision.chosen)[0]
    headers = (
        (protocol.DECISION_ID, decision.request_id),
        (protocol.PREDICTED_CACHED_TOKENS, str(computes.match.tokens)),
    )
    if not decision.prefill:
        return headers
    candidates = ",".join(endpoint.address for endpoint in decision.prefill)
    return (*headers, (protocol.PREFILLER, candidates))
