"""The order of steps of one decision, and what becomes of the request afterwards.

Parse, write the model's other name, find tokens and keys, look up the candidates, keep to the
gateway's subset and to those that decode, rate, see whether somebody else should prefill, charge,
answer. Each step has a way down the ladder (DESIGN section 2): late or failing tokens give an
estimate or load alone, a failing plugin gives load alone, and where even that fails any ready
endpoint serves. Refused are a request that is wrong, a pool with nobody in it, and a request that
would have to be changed when there is no time for that.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from epp import protocol
from epp.errors import NoEndpoint, Refusal
from epp.framework import (
    Chance,
    Decision,
    Endpoint,
    EndpointId,
    LimitKeeper,
    MediaKeeper,
    Request,
    SessionReader,
)

from . import admin_token, conformance, filters, hints, saturation, shadow
from .admin_token import AdminToken
from .apis import catalog
from .attempts import Attempt, Attempts
from .ballot import Ballot
from .choice import Choice
from .exchange import Arrival, Outcome, Route
from .flight import Flight
from .neighbours import Meters, Observer, Pool
from .objectives import LiveObjectives
from .offload import Offload
from .plan.live import Built, LivePlan
from .profiles import Mode, ModeSwitch
from .replica import new_ids
from .scores import MAX_ROWS
from .sealing import Sealer
from .settings import PickSettings
from .tokens import Tokens
from .understanding import Understanding, Understood

__all__ = ["Made", "PickDirector", "PickSettings"]


@dataclass(slots=True, kw_only=True)
class Made:
    """A decision with what it was made from."""

    arrival: Arrival
    understood: Understood
    decision: Decision
    why: str
    """One of the words of `Observer.decided`."""
    built: Built
    primary_port: int = 0
    """See `Course.primary_port`."""
    shadow: bool = False
    """Nobody will hear of it; see `shadow`."""


@dataclass(slots=True, kw_only=True)
class _Wanted:
    """A request that is to be decided."""

    arrival: Arrival
    understood: Understood
    built: Built
    mode: Mode
    shadow: bool


class PickDirector:
    """Implements `exchange.Director` over the mirror of one pool."""

    def __init__(
        self,
        *,
        pool: Pool,
        tokens: Tokens,
        offload: Offload,
        switch: ModeSwitch,
        live: LivePlan,
        ballot: Ballot,
        chance: Chance,
        clock: Callable[[], float],
        observers: Sequence[Observer] = (),
        meters: Meters | None = None,
        objectives: LiveObjectives | None = None,
        settings: PickSettings | None = None,
        rules: catalog.Rules = catalog.ANY,
        ids: Callable[[], str] | None = None,
        admin: AdminToken | None = None,
        sealer: Sealer | None = None,
        attempts: Attempts | None = None,
    ) -> None:
        self._pool = pool
        self._switch = switch
        self._live = live
        self._ballot = ballot
        self._clock = clock
        self._observers = tuple(observers)
        self._meters = meters
        self._objectives = objectives or LiveObjectives(chance)
        self._settings = settings or PickSettings()
        self._admin = admin or AdminToken()
        self._sealer = sealer
        self._attempts = Attempts() if attempts is None else attempts
        self._understanding = Understanding(
            tokens=tokens,
            offload=offload,
            objectives=self._objectives,
            rules=rules,
            settings=self._settings,
            clock=clock,
            ids=ids or new_ids(),
            failed=self._failed,
        )
        self._choice = Choice(
            pool=pool,
            chance=chance,
            clock=clock,
            ballot=ballot,
            failed=self._failed,
            count=self._settings.destinations,
            rows=sys.maxsize if self._settings.emit_scores else MAX_ROWS,
        )

    async def decide(self, arrival: Arrival) -> Outcome:
        """Route one request, or refuse it. Raises only where not even the pool can be read."""
        started = self._clock()
        arrival, tell = self._admin.taken(arrival)
        said = hints.read(arrival.headers)
        for header in said.ignored:
            for observer in self._observers:
                observer.ignored(header)
        with self._attempts.begin(arrival, started) as attempt:
            try:
                wanted = await self._wanted(arrival, said, started, attempt)
            except Refusal as refusal:
                return self._refused(refusal)
            try:
                made = self._made(wanted, started)
            except Refusal as refusal:
                passes = isinstance(self._refused(refusal), NoEndpoint) and wanted.shadow
                return shadow.unrouted(wanted.understood) if passes else refusal
            return self._route(made, started, attempt, tell=tell)

    async def preview(self, arrival: Arrival) -> Made:
        """What would become of a request. Nothing is booked, and no observer is told of it.

        Raises Refusal.
        """
        started = self._clock()
        arrival, _ = self._admin.taken(arrival)
        return self._made(
            await self._wanted(arrival, hints.read(arrival.headers), started), started
        )

    async def _wanted(
        self,
        arrival: Arrival,
        said: hints.Hints,
        started: float,
        attempt: Attempt | None = None,
    ) -> _Wanted:
        """The request with what can be known of it. Raises Refusal."""
        if attempt is not None:
            said = attempt.remaining(said)
        mode, built = self._switch.mode, self._live.built
        unheard = mode is Mode.SHADOW
        if unheard:
            mode = Mode.NORMAL
        arrival = self._within(arrival)
        if not unheard:
            saturation.shed(
                self._objectives.priority(said.objective),
                built.detector,
                self._ballot,
                lambda: filters.eligible(self._pool.ready(self._clock()), arrival.subset),
            )
        session = self._session(arrival, built)
        understood = await self._understanding.of(
            arrival,
            self._limited(replace(said, session=session) if session else said, built),
            score=mode is Mode.NORMAL,
            started=started,
            parsers=built.plan.parsers,
        )
        held = self._held(understood.request, built)
        if held:
            request = replace(understood.request, media_held=held)
            understood = replace(understood, request=request)
        if attempt is not None:
            understood = attempt.known_to(understood)
        return _Wanted(
            arrival=arrival, understood=understood, built=built, mode=mode, shadow=unheard
        )

    def _made(self, wanted: _Wanted, started: float) -> Made:
        """Raises Refusal."""
        if wanted.built.admitters and not wanted.shadow:
            self._choice.admit(wanted.arrival, wanted.understood.request, wanted.built)
        timeout_s = wanted.understood.request.timeout_s
        late = self._understanding.left_s(started, timeout_s) <= 0.0
        decision, why, course = self._choice.of(
            wanted.arrival, wanted.understood, wanted.built, wanted.mode, late=late
        )
        first = (shadow.REASON,) if wanted.shadow else ()
        notes = wanted.understood.notes
        if first or notes:
            decision = replace(decision, reasons=(*first, *decision.reasons, *notes))
        return Made(
            arrival=wanted.arrival,
            understood=wanted.understood,
            decision=decision,
            why=why,
            built=wanted.built,
            primary_port=course.primary_port,
            shadow=wanted.shadow,
        )

    def _refused(self, refusal: Refusal) -> Refusal:
        for observer in self._observers:
            observer.refused(refusal)
        return refusal

    def _limited(self, said: hints.Hints, built: Built) -> hints.Hints:
        """With the limit between tokens as strict as a producer wants it."""
        for one in built.producers.get("predicted-latency", ()):
            if said.slo_tpot_s is not None and isinstance(one.plugin, LimitKeeper):
                limit_s = said.slo_tpot_s * one.plugin.slo_buffer_factor
                said = replace(said, slo_tpot_s=limit_s)
        return said

    def _session(self, arrival: Arrival, built: Built) -> str:
        """The client's session, where a producer reads it."""
        for one in built.producers.get("session-id", ()):
            if isinstance(one.plugin, SessionReader):
                found = self._ballot.ask(one.name, partial(one.plugin.session, arrival.headers))
                return found or ""
        return ""

    def _held(self, request: Request, built: Built) -> Mapping[EndpointId, int]:
        """Who holds media of the request, where a producer knows."""
        for one in built.producers.get("encoder-cache", ()) if request.media else ():
            if isinstance(one.plugin, MediaKeeper):
                return self._ballot.ask(one.name, partial(one.plugin.held, request.media)) or {}
        return {}

    def _within(self, arrival: Arrival) -> Arrival:
        """The request with those endpoints as its subset that count here."""
        subset = arrival.subset if self._settings.subset_filter else None
        if self._settings.conformance:
            subset = conformance.selection(arrival.headers) or subset
        return arrival if subset == arrival.subset else replace(arrival, subset=subset)

    def _route(self, made: Made, started: float, attempt: Attempt, *, tell: bool) -> Route:
        """Book it. `tell`: whoever sent it may know the decision."""
        now = self._clock()
        arrival, decision = made.arrival, made.decision
        request, first = made.understood.request, decision.chosen[0]
        prefill = decision.prefill[0] if decision.prefill and not made.shadow else None
        encode = () if made.shadow else decision.encode
        charged = bool(arrival.body) or arrival.body_hidden
        if charged:
            self._choice.attempt(
                "charge",
                lambda: self._pool.charge(first, request, now, prefill=prefill, encode=encode),
            )
        scores: tuple[tuple[str, float], ...] = ()
        if self._settings.emit_scores:
            scores = tuple((row.address, row.total) for row in decision.table)
            decision = replace(decision, table=decision.table[:MAX_ROWS])
        for observer in self._observers:
            observer.decided(decision, request, made.why, now - started)
        for one in made.built.watchers:
            self._ballot.tell(one.name, partial(one.plugin.chosen, request, decision))
        meter = None
        if self._meters is not None and arrival.answer_shown and charged:
            meter = self._meters(request, len(arrival.body), started)
        told = tuple([_told(endpoint, made.primary_port) for endpoint in decision.chosen])
        flight = Flight(
            pool=self._pool,
            observers=self._observers,
            clock=self._clock,
            request=request,
            chosen=decision.chosen,
            told=told,
            charged=charged,
            meter=meter,
            say_served=self._settings.conformance,
            answer_headers=(admin_token.header(decision),) if tell else (),
            followers=made.built.followers,
            markers=() if made.shadow else made.built.markers,
            ballot=self._ballot,
            attempt=attempt,
            shadow=made.shadow,
        )
        return Route(
            destination=None if made.shadow else ",".join(told),
            progress=flight,
            set_headers=_headers(made, self._sealer, now - started),
            body=made.understood.body,
            scores=scores,
            model=made.understood.model,
        )

    def _failed(self, step: str) -> None:
        for observer in self._observers:
            observer.failed(step)


def _told(endpoint: Endpoint, primary_port: int) -> str:
    """Where the gateway sends requests for an endpoint; see `Course.primary_port`."""
    if not primary_port:
        return endpoint.address
    return f"{endpoint.address.rpartition(':')[0]}:{primary_port}"


def _headers(made: Made, sealer: Sealer | None, took_s: float) -> tuple[tuple[str, str], ...]:
    """What the destination's sidecar is told: nothing that a client wrote (A23). `took_s`: how long
    the decision took."""
    decision = made.decision
    if made.shadow:
        return shadow.headers(decision)
    computes = (decision.prefill or decision.chosen)[0]
    headers = [
        (protocol.DECISION_ID, decision.request_id),
        (protocol.PREDICTED_CACHED_TOKENS, str(computes.match.tokens)),
    ]
    timeout_s = made.understood.request.timeout_s
    if timeout_s is not None:
        left_ms = max(1, int(1000 * (timeout_s - took_s)))
        headers.append((protocol.TIMEOUT_LEFT_MS, str(left_ms)))
    if made.primary_port:
        headers.append((protocol.DATA_PARALLEL, decision.chosen[0].address))
    for name, others in (
        (protocol.PREFILLER, decision.prefill),
        (protocol.ENCODERS, decision.encode),
    ):
        if others:
            headers.append((name, ",".join(endpoint.address for endpoint in others)))
    if sealer is not None:
        headers += sealer.header(dict(headers))
    return tuple(headers)
