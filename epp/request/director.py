"""The order of steps of one decision, and what becomes of the request afterwards.

Parse, find tokens and keys, look up the candidates, keep to the gateway's subset and to those that
decode, rate, see whether somebody else should prefill, charge, answer. Each step has a way down the
ladder (DESIGN section 2): late or failing tokens give an estimate or load alone, a failing plugin
gives load alone, and where even that fails any ready endpoint serves. Only two things are refused:
a request that is wrong, and a pool with nobody in it.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from epp import protocol
from epp.errors import Refusal
from epp.framework import Decision, Endpoint, Request, Rung

from . import filters, split
from .apis import catalog, passthrough
from .apis.prompt import Parsed
from .exchange import Arrival, Outcome, Route
from .flight import Flight
from .neighbours import Observer, Pool
from .offload import BusyError, Offload
from .pickers import Chance
from .profiles import Mode, ModeSwitch
from .schedule import Profile, draw, schedule
from .tokens import Tokenised, Tokens

MAX_UNSCORED_TOKENS = 4096
"""Prompt tokens charged for a body that nobody understood: a guess from its size, bounded."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PickSettings:
    """Limits of one decision."""

    deadline_s: float = 0.2
    """After this, choose with what is at hand."""
    tokens_s: float = 0.1
    """Longest wait for an engine's tokens; at most the deadline."""
    destinations: int = 1
    """Endpoints in the answer. Gateways that route by ORIGINAL_DST take one only."""
    default_output_tokens: int = 256
    """Length charged for an answer whose request sets no limit."""
    max_output_tokens: int = 4096
    """Most that is charged for one answer; limits are rarely reached."""

    def __post_init__(self) -> None:
        if not 0.0 < self.tokens_s <= self.deadline_s:
            raise ValueError("tokens_s must be above 0 and at most deadline_s")
        if self.destinations < 1:
            raise ValueError("destinations must be at least 1")


@dataclass(frozen=True, slots=True)
class _Understood:
    request: Request
    why: str
    """`ok`, or the stable word why a decision will know less than it might."""
    told: str
    """More exactly, for the decision's reasons."""


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
        settings: PickSettings | None = None,
        split_rules: split.SplitRules | None = None,
        rules: catalog.Rules = catalog.ANY,
        ids: Callable[[], str] = new_id,
    ) -> None:
        self._pool = pool
        self._tokens = tokens
        self._offload = offload
        self._switch = switch
        self._profile = profile
        self._load_only = load_only
        self._prefill = prefill
        self._split_rules = split_rules or split.SplitRules()
        self._chance = chance
        self._clock = clock
        self._observers = tuple(observers)
        self._settings = settings or PickSettings()
        self._rules = rules
        self._ids = ids

    async def decide(self, arrival: Arrival) -> Outcome:
        """Route one request, or refuse it. Raises only where not even the pool can be read."""
        started = self._clock()
        mode = self._switch.mode
        try:
            understood = await self._understand(arrival, mode, started)
            decision, why = self._choose(arrival, understood, mode, started)
        except Refusal as refusal:
            for observer in self._observers:
                observer.refused(refusal)
            return refusal
        return self._route(arrival, understood.request, decision, why, started)

    async def _understand(self, arrival: Arrival, mode: Mode, started: float) -> _Understood:
        """The request with as much as could be known in time. Raises Refusal."""
        parsed: Parsed | None = None
        found: Tokenised | None = None
        why = "ok"
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                parsed = await self._offload.run(
                    catalog.work_bytes(arrival, self._rules),
                    lambda: catalog.parse(arrival, self._rules),
                )
                if parsed.prompt is None:
                    why = "unscored"
                elif mode is Mode.NORMAL:
                    wait_s = min(self._settings.tokens_s, self._left(started))
                    found = await self._tokens.resolve(parsed, parsed.prompt, wait_s=wait_s)
        except Refusal:
            raise
        except (TimeoutError, BusyError):
            why = "late"
        except Exception:
            why = "failed"
            log.exception("a step of a decision failed", step="understand")
            self._failed("understand")
        if parsed is None:
            parsed = passthrough.unscored(catalog.plain_path(arrival.path), "not parsed")
        return _Understood(self._request(arrival, parsed, found), why, _told(parsed, found))

    def _request(self, arrival: Arrival, parsed: Parsed, found: Tokenised | None) -> Request:
        tokens = min(len(arrival.body) // 4, MAX_UNSCORED_TOKENS)
        if found is not None:
            tokens = found.tokens
        elif parsed.prompt is not None:
            tokens = self._tokens.size(parsed.prompt)
        elif parsed.prompt_tokens is not None:
            tokens = parsed.prompt_tokens
        output = parsed.output_tokens or self._settings.default_output_tokens
        return Request(
            id=self._ids(),
            api=parsed.api,
            path=parsed.path,
            model=parsed.model,
            prompt_tokens=tokens,
            output_tokens=min(output, self._settings.max_output_tokens),
            exact=found is not None and found.exact,
            keys=found.keys if found is not None else (),
            block_size=self._tokens.block_tokens,
            scored=found is not None,
            whole=parsed.whole,
        )

    def _choose(
        self, arrival: Arrival, understood: _Understood, mode: Mode, started: float
    ) -> tuple[Decision, str]:
        """Walk down the ladder until a step gives a decision. Raises NoEndpoint."""
        request, why = understood.request, understood.why
        if mode is not Mode.NORMAL:
            why = "mode"
        elif request.scored and self._left(started) <= 0.0:
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
        decision = schedule(request, decoders, self._profile, self._chance, count=self._count)
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

    def _left(self, started: float) -> float:
        return max(0.0, self._settings.deadline_s - (self._clock() - started))

    def _route(
        self, arrival: Arrival, request: Request, decision: Decision, why: str, started: float
    ) -> Route:
        now = self._clock()
        first = decision.chosen[0]
        prefill = decision.prefill[0] if decision.prefill else None
        charged = bool(arrival.body) or arrival.body_hidden
        if charged:
            self._attempt(
                "charge",
                lambda: self._pool.charge(
                    first, request, now, **({"prefill": prefill} if prefill else {})
                ),
            )
        for observer in self._observers:
            observer.decided(decision, request, why, now - started)
        flight = Flight(
            pool=self._pool,
            observers=self._observers,
            clock=self._clock,
            request=request,
            address=first.address,
            charged=charged,
        )
        return Route(
            destination=",".join(endpoint.address for endpoint in decision.chosen),
            progress=flight,
            set_headers=_headers(decision),
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


def _told(parsed: Parsed, found: Tokenised | None) -> str:
    """Where the tokens come from, or why there are none, in stable words."""
    if found is not None:
        return found.how
    return parsed.unscored or "without tokens"
