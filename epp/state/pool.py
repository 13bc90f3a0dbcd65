"""All that the request path knows of one pool, read and written without waiting for anyone.

The facade over membership, prefix index, predictions and load. It is soft state: a wrong entry may
cost a cache miss, never a wrong answer. What it hears comes as records from the log (`apply`),
pages scraped from plain engines (`scraped`), lists from the control path (`replace`) and the
progress of our own requests. `tick` several times a second lets old things go.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from epp.framework import (
    NO_MATCH,
    Endpoint,
    EndpointId,
    Incarnation,
    Match,
    PoolId,
    Request,
    Rung,
    Source,
)

from . import blocks
from .charges import Charge, Charges, Trust
from .endpoints import Changes, Endpoints, Member
from .load import LoadBook
from .metrics_page import EngineMetrics
from .mirror import Mirror
from .prefix.index import PrefixIndex
from .prefix.predicted import PredictedIndex
from .records import Done, Outcome, Record, RecordError, parse

DoneHook = Callable[[Done, Endpoint, int], None]
"""Called with a finished request, the endpoint as it was chosen, and the predicted tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    fresh_s: float = 2.0
    """A writer silent for longer is not believed: one step down the ladder."""
    writer_lost_s: float = 5.0
    """A writer silent for longer will not say what became of running requests."""
    prediction_grace_s: float = 5.0
    """Longest life of a prediction after its request's first token, where events are seen."""
    max_unconfirmed: int = 10_000
    """Requests of one endpoint whose predictions wait for an event batch."""
    own_block_tokens: int = blocks.OWN_BLOCK_TOKENS
    sweep_budget: int = 5_000
    """Index entries of dead lives that one tick looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """One member for metrics and for people."""

    member: Member
    incarnation: Incarnation
    ready: bool
    rung: Rung
    blocks: int
    trust: float
    record_age_s: float | None


class PoolState:
    """See the module. All methods are synchronous and belong to one event loop.

    `counts` says what was refused or repaired, by a fixed set of words (`record-*`, `feed-*`,
    `blocks-*`, `done-*`, `charge-*`).
    """

    def __init__(
        self,
        pool: PoolId,
        endpoints: Endpoints,
        index: PrefixIndex,
        predicted: PredictedIndex,
        load: LoadBook,
        *,
        rules: PoolRules | None = None,
        charges: Charges | None = None,
    ) -> None:
        self.pool = pool
        self.endpoints = endpoints
        self.rules = rules or PoolRules()
        self.counts: Counter[str] = Counter()
        self.on_done: list[DoneHook] = []
        self._mirror = Mirror(
            index,
            own_block_tokens=self.rules.own_block_tokens,
            fresh_s=self.rules.fresh_s,
            counts=self.counts,
        )
        self._predicted = predicted
        self._load = load
        self._charges = charges if charges is not None else Charges()
        self._trust: dict[EndpointId, Trust] = {}
        self._unconfirmed: dict[EndpointId, deque[tuple[float, str]]] = {}
        self._lives: tuple[Incarnation, ...] = ()

    # Read by decisions

    def candidates(
        self, keys: Sequence[int], *, block_tokens: int, prompt_tokens: int, now: float
    ) -> list[Endpoint]:
        """Ready members with load and match. No keys, or keys of another size: no matches."""
        ready = self.endpoints.ready(now)
        if not keys or block_tokens != self.rules.own_block_tokens:
            return [self._endpoint(member, inc, NO_MATCH, now) for member, inc in ready]
        lives = tuple(inc for _, inc in ready)
        if lives == self._lives:
            lives = self._lives  # the index is faster for the same tuple
        self._lives = lives
        precise = self._mirror.lookup(keys, lives)
        predicted = self._predicted.lookup(keys, lives, now)
        return [
            self._endpoint(
                member,
                inc,
                self._match(
                    member.id,
                    min(prompt_tokens, precise.get(inc, 0) * block_tokens),
                    min(prompt_tokens, predicted.get(inc, 0) * block_tokens),
                    now,
                ),
                now,
            )
            for member, inc in ready
        ]

    def ready(self, now: float) -> list[Endpoint]:
        """Ready members with their load, without matches."""
        return [self._endpoint(m, inc, NO_MATCH, now) for m, inc in self.endpoints.ready(now)]

    def rung(self, endpoint: EndpointId, now: float) -> Rung:
        """PRECISE where a live writer has told us all of the engine's blocks, else PREDICTED."""
        return self._mirror.rung(endpoint, now)

    def overview(self, now: float) -> list[EndpointStatus]:
        return [self._status(member, now) for member in self.endpoints]

    # Told by our own requests

    def charge(self, endpoint: Endpoint, request: Request, now: float) -> None:
        """Put a decision's load and its prediction on the endpoint that was chosen."""
        member, inc = self.endpoints.member(endpoint.id), self.endpoints.incarnation(endpoint.id)
        if member is None or inc is None:
            self.counts["charge-no-member"] += 1
            return
        uncached = max(0, request.prompt_tokens - int(endpoint.match.credited_tokens))
        charged = self._load.reserve(
            inc,
            request.id,
            prefill_tokens=uncached,
            decode_tokens=uncached + request.output_tokens,
            has_writer=member.has_sidecar,
            now=now,
        )
        if not charged:
            self.counts["charge-refused"] += 1
            return
        self._charges.add(request.id, endpoint)
        if request.keys and request.block_size == self.rules.own_block_tokens:
            self._predicted.insert(inc, request.keys, request.id, now)

    def response_headers(self, request_id: str, status: int, now: float) -> None:
        self._load.response_headers(request_id, now)
        if status >= 400:  # the prompt was not computed
            self._predicted.drop(request_id)

    def first_byte(self, request_id: str, now: float) -> None:
        """The first byte of the answer's body came by: its prefill is over."""
        self._load.first_token(request_id, now)
        held = self._charges.get(request_id)
        if held is None or held.first_seen:
            return
        held.first_seen = True
        endpoint = held.endpoint.id
        if self.rung(endpoint, now) is Rung.PRECISE:
            waiting = self._unconfirmed.setdefault(endpoint, deque())
            waiting.append((now + self.rules.prediction_grace_s, request_id))
            if len(waiting) > self.rules.max_unconfirmed:
                self._predicted.confirm(waiting.popleft()[1], now, 0.0)

    def finished(self, request_id: str, now: float) -> None:
        """The end of the answer was seen on the stream."""
        self._load.finish(request_id, now)
        self._end_charge(request_id, now)

    def reset(self, request_id: str, *, answered: bool, now: float) -> None:
        """The stream ended otherwise. `answered`: after response headers, the answer may run on."""
        if answered:
            self._load.leave(request_id, now)
            return
        self._load.finish(request_id, now, measured=False)
        self._predicted.drop(request_id)
        self._end_charge(request_id, now)

    # Told by others

    def apply(self, record: bytes, now: float) -> None:
        """Take one record from the log. What cannot be believed is dropped and counted."""
        try:
            parsed = parse(record)
        except RecordError as error:
            self.counts[f"record-{error.kind}"] += 1
            return
        endpoint = parsed.endpoint
        if endpoint.pool != self.pool or endpoint not in self.endpoints:
            self.counts["record-no-member"] += 1
            return
        inc = self._born(endpoint, parsed.incarnation.start_ms, now)
        if inc is None:
            self.counts["record-old-life"] += 1
            return
        if self._mirror.accept(parsed, inc, now):
            self._take(parsed, inc, now)

    def replace(self, members: Collection[Member], now: float) -> Changes:
        """The control path's list is the pool; everything about removed members is forgotten."""
        changes = self.endpoints.replace(members, now)
        for inc in changes.removed:
            self._forget(inc)
            self._trust.pop(inc.endpoint, None)
        return changes

    def scrape_targets(self, now: float) -> list[tuple[EndpointId, str]]:
        """Members whose page is worth reading: no sidecar, or none that speaks."""
        return [
            (member.id, member.metrics_url)
            for member in self.endpoints
            if member.metrics_url is not None
            and not (member.has_sidecar and self._mirror.fresh(member.id, now))
        ]

    def scraped(self, endpoint: EndpointId, page: EngineMetrics, now: float) -> None:
        """An engine's own metrics page was read."""
        member = self.endpoints.member(endpoint)
        if member is None:
            return
        self.endpoints.set_reachable(endpoint, True, now)
        if page.start_ms is not None and not member.has_sidecar:
            self._born(endpoint, page.start_ms, now)
        inc = self.endpoints.incarnation(endpoint)
        if inc is not None:
            self._load.report(inc, page.report, now)

    def scrape_failed(self, endpoint: EndpointId, now: float, *, refused: bool) -> None:
        """No page. Only a refused connection says that nobody is there (fault B02)."""
        if refused:
            self.endpoints.set_reachable(endpoint, False, now)

    def tick(self, now: float) -> None:
        """Let go of what is over. Cheap; call it several times a second."""
        for request_id in self._load.tick(now):
            self._end_charge(request_id, now)
        self._charges.prune(now)
        for waiting in self._unconfirmed.values():
            while waiting and waiting[0][0] <= now:
                self._predicted.confirm(waiting.popleft()[1], now, 0.0)
        self._mirror.sweep(self.rules.sweep_budget)
        for endpoint in self._mirror.silent(self.rules.writer_lost_s, now):
            inc = self.endpoints.incarnation(endpoint)
            if inc is not None:
                self._load.writer_lost(inc, now)

    # Mechanics

    def _endpoint(self, member: Member, inc: Incarnation, match: Match, now: float) -> Endpoint:
        return Endpoint(
            id=member.id,
            address=member.address,
            incarnation=inc,
            role=member.role,
            labels=member.labels,
            load=self._load.load(inc, now),
            match=match,
        )

    def _match(self, endpoint: EndpointId, precise: int, predicted: int, now: float) -> Match:
        """The better of both. Blocks of a writer that fell silent are predictions like ours."""
        if not precise and not predicted:
            return NO_MATCH
        if precise and not self._mirror.fresh(endpoint, now):
            precise, predicted = 0, max(precise, predicted)
        trust = self._trust.get(endpoint, _UNTRIED).value
        if precise >= predicted * trust:
            return Match(precise, Source.PRECISE)
        return Match(predicted, Source.PREDICTED, trust)

    def _born(self, endpoint: EndpointId, start_ms: int, now: float) -> Incarnation | None:
        before = self.endpoints.incarnation(endpoint)
        inc = self.endpoints.born(endpoint, start_ms, now)
        if before is None or inc is None or inc == before:
            return inc
        if before.start_ms == 0:
            self._load.adopt(before, inc)
        self._forget(before)
        self._trust.pop(endpoint, None)
        return inc

    def _forget(self, inc: Incarnation) -> None:
        self._mirror.forget(inc)
        self._predicted.forget(inc)
        self._load.forget(inc)
        self._unconfirmed.pop(inc.endpoint, None)

    def _take(self, record: Record, inc: Incarnation, now: float) -> None:
        self._load.writer_seen(inc)
        self.endpoints.heard(record.endpoint)
        if record.status is not None:
            self.endpoints.set_ready(record.endpoint, record.status.ready, now)
            self._load.report(inc, record.status.report, now)
        if record.blocks is not None:
            confirmed = self._mirror.change(record.blocks, inc, most=self._most_blocks(inc, now))
            for _, request_id in self._unconfirmed.pop(inc.endpoint, ()) if confirmed else ():
                self._predicted.confirm(request_id, now, 0.0)
        for first in record.first_tokens:
            if self._own(first.decision_id, record.endpoint) is not None:
                self.first_byte(first.decision_id, now)
        for done in record.done:
            held = self._own(done.decision_id, record.endpoint)
            if held is None:
                self.counts["done-unknown"] += 1
            else:
                self._take_done(done, held, now)

    def _most_blocks(self, inc: Incarnation, now: float) -> int | None:
        """Own blocks that the engine can hold: each is completed by another block of the engine."""
        load = self._load.load(inc, now)
        if load.total_blocks is None:
            return None
        return load.total_blocks * max(1, -(-load.block_tokens // self.rules.own_block_tokens))

    def _own(self, request_id: str, endpoint: EndpointId) -> Charge | None:
        """A decision of ours for this endpoint; a writer has no say in another's requests."""
        held = self._charges.get(request_id)
        return held if held is not None and held.endpoint.id == endpoint else None

    def _take_done(self, done: Done, held: Charge, now: float) -> None:
        answered = done.outcome is Outcome.OK and done.status < 400
        self._load.finish(done.decision_id, now, measured=answered)
        computed = answered or (done.outcome is Outcome.CLIENT_GONE and held.first_seen)
        if not computed:
            self._predicted.drop(done.decision_id)
        match = held.endpoint.match
        if answered and done.cached_tokens is not None:
            trust = self._trust.setdefault(held.endpoint.id, Trust())
            trust.observe(match.source, match.tokens, done.cached_tokens)
        self._charges.drop(done.decision_id)
        for hook in self.on_done:
            hook(done, held.endpoint, held.predicted_tokens)

    def _end_charge(self, request_id: str, now: float) -> None:
        held = self._charges.get(request_id)
        if held is not None:
            member = self.endpoints.member(held.endpoint.id)
            self._charges.end(request_id, now, linger=member is not None and member.has_sidecar)

    def _status(self, member: Member, now: float) -> EndpointStatus:
        inc = self.endpoints.incarnation(member.id) or Incarnation(member.id, 0)
        return EndpointStatus(
            member=member,
            incarnation=inc,
            ready=self.endpoints.is_ready(member.id, now),
            rung=self.rung(member.id, now),
            blocks=self._mirror.blocks(inc),
            trust=self._trust.get(member.id, _UNTRIED).value,
            record_age_s=self._mirror.age_s(member.id, now),
        )


_UNTRIED = Trust()
