"""All that the request path knows of one pool, read and written without waiting for anyone.

The facade over membership, prefix index, predictions and load. It is soft state: a wrong entry may
cost a cache miss, never a wrong answer. What it hears comes as records from the log (`apply`),
pages scraped from plain engines (`scraped`), lists from the control path (`replace`) and the
progress of our own requests. `tick` several times a second lets old things go.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from epp.framework import (
    NO_MATCH,
    Endpoint,
    EndpointId,
    Incarnation,
    Match,
    PoolId,
    Request,
    Rung,
)

from . import blocks
from .charges import Charge, Charges, Trusts, Unconfirmed, leg_of
from .endpoints import Changes, Endpoints, EndpointStatus, Member
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
        self._trust = Trusts()
        self._unconfirmed = Unconfirmed(
            grace_s=self.rules.prediction_grace_s, limit=self.rules.max_unconfirmed
        )
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
                self._trust.match(
                    member.id,
                    min(prompt_tokens, precise.get(inc, 0) * block_tokens),
                    min(prompt_tokens, predicted.get(inc, 0) * block_tokens),
                    fresh=self._mirror.fresh(member.id, now),
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

    def charge(
        self, endpoint: Endpoint, request: Request, now: float, *, prefill: Endpoint | None = None
    ) -> None:
        """Put a decision's load and its predictions on the endpoints that were chosen.

        With `prefill` the prompt is that one's load until it is computed (fault B15). Only then
        its blocks come to `endpoint`: an equal prompt that arrives before finds nothing there.
        """
        lacks = int(endpoint.match.missing(request.prompt_tokens))
        room = lacks + request.output_tokens
        if prefill is None:
            if self._put(endpoint, request, now, prefill_tokens=lacks, decode_tokens=room):
                self._charges.add(request.id, endpoint)
            return
        answer = replace(request, keys=())
        if not self._put(endpoint, answer, now, prefill_tokens=0, decode_tokens=room):
            return
        self._charges.add(request.id, endpoint, prefill, self._predictable(request))
        leg = replace(request, id=leg_of(request.id))
        elsewhere = int(prefill.match.missing(request.prompt_tokens))
        self._put(prefill, leg, now, prefill_tokens=elsewhere, decode_tokens=0)

    def response_headers(self, request_id: str, status: int, now: float) -> None:
        """The answer began. That of a split request begins when its prompt has been computed."""
        self._load.response_headers(request_id, now)
        self._end_leg(request_id, now, computed=status < 400)
        if status >= 400:  # the prompt was not computed
            self._predicted.drop(request_id)

    def first_byte(self, request_id: str, now: float) -> None:
        """The first byte of the answer's body came by: its prefill is over."""
        self._load.first_token(request_id, now)
        self._end_leg(request_id, now, computed=True)
        held = self._charges.get(request_id)
        if held is not None and not held.first_seen:
            held.first_seen = True
            self._await_events(held.endpoint.id, request_id, now)

    def finished(self, request_id: str, now: float) -> None:
        """The end of the answer was seen on the stream."""
        self._load.finish(request_id, now)
        self._end_leg(request_id, now, computed=True)
        self._end_charge(request_id, now)

    def reset(self, request_id: str, *, answered: bool, now: float) -> None:
        """The stream ended otherwise. `answered`: after response headers, the answer may run on."""
        self._end_leg(request_id, now, computed=answered)
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
            self._trust.forget(inc.endpoint)
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
            self._end_leg(request_id, now, computed=False)
            self._end_charge(request_id, now)
        self._charges.prune(now)
        for name in self._unconfirmed.due(now):
            self._predicted.confirm(name, now, 0.0)
        self._mirror.sweep(self.rules.sweep_budget)
        for endpoint in self._mirror.silent(self.rules.writer_lost_s, now):
            inc = self.endpoints.incarnation(endpoint)
            if inc is not None:
                self._load.writer_lost(inc, now)

    # Mechanics

    def _put(
        self,
        endpoint: Endpoint,
        request: Request,
        now: float,
        *,
        prefill_tokens: int,
        decode_tokens: int,
    ) -> bool:
        """Reserve and predict under the request's id. False where that is refused, and counted."""
        member, inc = self.endpoints.member(endpoint.id), self.endpoints.incarnation(endpoint.id)
        if member is None or inc is None:
            self.counts["charge-no-member"] += 1
            return False
        charged = self._load.reserve(
            inc,
            request.id,
            prefill_tokens=prefill_tokens,
            decode_tokens=decode_tokens,
            has_writer=member.has_sidecar,
            now=now,
        )
        if not charged:
            self.counts["charge-refused"] += 1
        else:
            self._predicted.insert(inc, self._predictable(request), request.id, now)
        return charged

    def _predictable(self, request: Request) -> tuple[int, ...]:
        return request.keys if request.block_size == self.rules.own_block_tokens else ()

    def _end_leg(self, request_id: str, now: float, *, computed: bool) -> None:
        """The prompt of a split request is computed, or never will be. The first word counts."""
        leg = leg_of(request_id)
        if not self._load.finish(leg, now, measured=False):
            return
        held = self._charges.get(request_id)
        if not computed or held is None or held.prefill is None:
            self._predicted.drop(leg)
            return
        self._await_events(held.prefill.id, leg, now)
        inc = self.endpoints.incarnation(held.endpoint.id)
        if inc is not None:
            self._predicted.insert(inc, self._charges.take_keys(held), request_id, now)

    def _await_events(self, endpoint: EndpointId, name: str, now: float) -> None:
        """A predicted prompt is computed: the engine's events, where seen, will soon replace it."""
        if self.rung(endpoint, now) is Rung.PRECISE:
            crowded_out = self._unconfirmed.add(endpoint, name, now)
            if crowded_out is not None:
                self._predicted.confirm(crowded_out, now, 0.0)

    def _endpoint(self, member: Member, inc: Incarnation, match: Match, now: float) -> Endpoint:
        return Endpoint(
            id=member.id,
            address=member.address,
            incarnation=inc,
            role=member.role,
            labels=member.labels,
            has_sidecar=member.has_sidecar,
            load=self._load.load(inc, now),
            match=match,
        )

    def _born(self, endpoint: EndpointId, start_ms: int, now: float) -> Incarnation | None:
        before = self.endpoints.incarnation(endpoint)
        inc = self.endpoints.born(endpoint, start_ms, now)
        if before is None or inc is None or inc == before:
            return inc
        if before.start_ms == 0:
            self._load.adopt(before, inc)
        self._forget(before)
        self._trust.forget(endpoint)
        return inc

    def _forget(self, inc: Incarnation) -> None:
        self._mirror.forget(inc)
        self._predicted.forget(inc)
        self._load.forget(inc)
        self._unconfirmed.take(inc.endpoint)

    def _take(self, record: Record, inc: Incarnation, now: float) -> None:
        self._load.writer_seen(inc)
        self.endpoints.heard(record.endpoint)
        if record.status is not None:
            self.endpoints.set_ready(record.endpoint, record.status.ready, now)
            self._load.report(inc, record.status.report, now)
        if record.blocks is not None:
            confirmed = self._mirror.change(record.blocks, inc, most=self._most_blocks(inc, now))
            for name in self._unconfirmed.take(inc.endpoint) if confirmed else ():
                self._predicted.confirm(name, now, 0.0)
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
        self._end_leg(done.decision_id, now, computed=computed)
        if not computed:
            self._predicted.drop(done.decision_id)
        if answered and done.cached_tokens is not None and held.prefill is None:
            self._trust.observe(held.endpoint.id, held.endpoint.match, done.cached_tokens)
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
            trust=self._trust.of(member.id),
            record_age_s=self._mirror.age_s(member.id, now),
        )
