"""All that the request path knows of one pool, read and written without waiting for anyone.

The facade over membership, prefix index, predictions and load. It is soft state: a wrong entry may
cost a cache miss, never a wrong answer. What it hears comes as records from the log (`apply`),
pages scraped from plain engines (`scraped`), lists from the control path (`replace`) and the
progress of our own requests. `tick` several times a second lets old things go.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from epp.framework import Candidates, Endpoint, EndpointId, Incarnation, PoolId, Request, Rung

from .charges import Charges, Trusts, Unconfirmed
from .charging import Charging, DoneHook, FirstHook
from .endpoints import Changes, Endpoints, EndpointStatus, Member, ScrapeTarget
from .foretold import Foretold
from .load import LoadBook
from .loading import Loading
from .matching import matches
from .metrics_page import EngineMetrics
from .mirror import Mirror
from .prefix.index import PrefixIndex
from .prefix.predicted import PredictedIndex
from .records import Record, RecordError, parse
from .replicas import total
from .reservation import NONE, Sums
from .rules import PoolRules
from .steps import Steps
from .sums import MAX_KEYS, ReplicaSums
from .table import Table
from .twins import Twins

RemovedHook = Callable[[Collection[EndpointId]], None]
"""Called with members that left the pool."""


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
        self.on_first: list[FirstHook] = []
        self._mirror = Mirror(
            index,
            own_block_tokens=self.rules.own_block_tokens,
            fresh_s=self.rules.fresh_s,
            counts=self.counts,
        )
        self._index = index
        self._predicted = predicted
        self._load = load
        self._steps = Steps(load.stepped)
        self._charges = charges if charges is not None else Charges()
        self._trust = Trusts()
        self._twins = Twins()
        self._unconfirmed = Unconfirmed(
            grace_s=self.rules.prediction_grace_s, limit=self.rules.max_unconfirmed
        )
        self.loading = Loading(self.rules.load_tokens_per_s)
        self._charging = Charging(
            endpoints=endpoints,
            predicted=predicted,
            load=load,
            charges=self._charges,
            unconfirmed=self._unconfirmed,
            trust=self._trust,
            loading=self.loading,
            rung=self._mirror.rung,
            own_block_tokens=self.rules.own_block_tokens,
            counts=self.counts,
            on_done=self.on_done,
            on_first=self.on_first,
        )
        self._table = Table(endpoints=endpoints, load=load, trust=self._trust, mirror=self._mirror)
        self.on_removed: list[RemovedHook] = []
        self._elsewhere: dict[Incarnation, Sums] = {}
        self._foretold = Foretold()

    # Read by decisions

    def candidates(
        self, keys: Sequence[int], *, block_tokens: int, prompt_tokens: int, now: float
    ) -> Candidates:
        """Ready members with load and match. No keys, or keys of another size: no matches."""
        if not keys or block_tokens != self.rules.own_block_tokens:
            return self.ready(now)
        table = self._table
        table.refresh(now)
        guessed = self._predicted.depths(keys, table.lives, now)
        if self._foretold:
            guessed = np.maximum(guessed, self._foretold.depths(keys, table.lives))
        found = matches(
            self._mirror.depths(keys, table.lives),
            guessed,
            fresh=lambda: table.fresh(now),
            trust=table.trusts,
            prefill_tokens_per_s=table.prefill_speeds,
            block_tokens=block_tokens,
            prompt_tokens=prompt_tokens,
            load_tokens_per_s=lambda tier: self.loading.speeds(tier, table.lives, now),
        )
        return table.candidates(now, found)

    def ready(self, now: float) -> Candidates:
        """Ready members with their load, without matches."""
        self._table.refresh(now)
        return self._table.candidates(now)

    def at(self, address: str, now: float) -> Endpoint | None:
        """The member behind an address, ready or not, without a match."""
        self._table.refresh(now)
        return self._table.at(address, now)

    def twins(self, keys: tuple[int, ...], now: float) -> Mapping[EndpointId, int]:
        """Requests of this prompt within the last seconds, by the endpoints they were put on."""
        return self._twins.of(keys, now)

    def rung(self, endpoint: EndpointId, now: float) -> Rung:
        """PRECISE where a live writer has told us all of the engine's blocks, else PREDICTED."""
        return self._mirror.rung(endpoint, now)

    def shows(self, endpoint: EndpointId, keys: Sequence[int], now: float) -> bool | None:
        """Whether an engine holds one of these blocks; None where no events of it are believed."""
        inc = self.endpoints.incarnation(endpoint)
        believed = self.rung(endpoint, now) is Rung.PRECISE and self._mirror.sees_events(endpoint)
        if inc is None or not believed:
            return None
        return any(self._mirror.depths((key,), (inc,)).gpu[0] > 0 for key in keys)

    def overview(self, now: float) -> list[EndpointStatus]:
        self._table.refresh(now)
        every = zip(self.endpoints, self._table.every(now), strict=True)
        return [self._status(member, endpoint, now) for member, endpoint in every]

    def reserved(self) -> dict[Incarnation, Sums]:
        """What our own decisions have put on each life, and what is left of it."""
        return self._load.sums()

    def foretold(self) -> dict[Incarnation, tuple[int, ...]]:
        """Some keys of the prompts that we have sent and no engine has shown yet, the latest."""
        return self._predicted.latest(MAX_KEYS)

    @property
    def sizes(self) -> dict[str, int]:
        """How much is kept of what has a limit."""
        return {
            "reservations": len(self._load),
            "decisions": len(self._charges),
            "predicted-blocks": len(self._predicted),
            "prompts": len(self._twins),
            "foretold-blocks": len(self._foretold),
            "tier-speeds": len(self.loading),
            "index-keys": len(self._index),
            "index-bytes": self._index.nbytes,
            "retired-blocks": self._index.retired_blocks,
        }

    @property
    def limited(self) -> dict[str, int]:
        """How much had no room there: decisions that were not charged, blocks that had to go."""
        return {
            "reservations": self._load.untracked,
            "predicted-blocks": self._predicted.evicted,
            "index-blocks": self._index.refused,
            "old-blocks": self._index.evicted,
            "late-blocks": self._index.late,
            "tier-blocks": self._index.refused_tiers,
        }

    # Told by our own requests

    def charge(
        self,
        endpoint: Endpoint,
        request: Request,
        now: float,
        *,
        prefill: Endpoint | None = None,
        encode: Sequence[Endpoint] = (),
    ) -> None:
        """Put a decision's load and its predictions on the endpoints that were chosen; with
        `prefill` that one computes the prompt, with `encode` those do the media."""
        self._charging.charge(endpoint, request, now, prefill, encode)
        for one in (endpoint,) if prefill is None else (endpoint, prefill):
            self._twins.sent(request.keys, one.id, now)

    def served_by(
        self, request: Request, address: str, chosen: Sequence[Endpoint], now: float
    ) -> None:
        """The gateway had `address` serve a request for which we named `chosen`, best first."""
        known = (endpoint for endpoint in chosen if endpoint.address == address)
        self._charging.move(request, next(known, None) or self.at(address, now), now)

    def response_headers(
        self, request_id: str, status: int, now: float, *, streaming: bool = True
    ) -> None:
        """The answer began. `streaming`: its first byte is not that of its end."""
        self._charging.response_headers(request_id, status, now, streaming=streaming)

    def first_byte(self, request_id: str, now: float) -> None:
        """The first byte of the answer's body came by."""
        self._charging.first_byte(request_id, now)

    def finished(self, request_id: str, now: float) -> None:
        """The end of the answer was seen on the stream."""
        self._charging.finished(request_id, now)

    def reset(self, request_id: str, *, answered: bool, now: float) -> None:
        """The stream ended otherwise. `answered`: after response headers, the answer may run on."""
        self._charging.reset(request_id, answered=answered, now=now)

    # Told by others

    def apply(self, record: bytes, now: float, *, behind_s: float = 0.0) -> None:
        """Take one record from the log; see `apply_all`."""
        self.apply_all((record,), now, behind_s=behind_s)

    def apply_all(self, records: Iterable[bytes], now: float, *, behind_s: float = 0.0) -> None:
        """Take records in their order. What cannot be believed is dropped and counted; whether an
        engine can hold so many blocks is seen once, at the end.

        `behind_s`: how long ago they may have been said; their writers were alive then, if not now.
        """
        for record in records:
            self._hear(record, now, behind_s)
        self._mirror.settle()

    def elsewhere(self, others: Collection[ReplicaSums], now: float) -> None:
        """All that other replicas have put on our members; it replaces what they said before."""
        self._foretold.replace(others, self.endpoints.incarnation)
        self._elsewhere = total(others, self.endpoints.incarnation)
        self._load.elsewhere(self._elsewhere, now)

    def replace(self, members: Collection[Member], now: float) -> Changes:
        """The control path's list is the pool; everything about removed members is forgotten."""
        changes = self.endpoints.replace(members, now)
        for inc in changes.removed:
            self._forget(inc)
            self._trust.forget(inc.endpoint)
        if changes.removed:
            gone = [inc.endpoint for inc in changes.removed]
            for hook in self.on_removed:
                hook(gone)
        return changes

    def scrape_targets(self, now: float) -> list[ScrapeTarget]:
        """Members whose page is worth reading: no sidecar, or none that speaks."""
        return [
            ScrapeTarget(member.id, member.metrics_url, member.labels)
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
            if not member.has_sidecar:
                self._steps.page(inc, page.steps, now)

    def scrape_failed(self, endpoint: EndpointId, now: float, *, refused: bool) -> None:
        """No page. Only a refused connection says that nobody is there (fault B02)."""
        if refused:
            self.endpoints.set_reachable(endpoint, False, now)

    def lost(self, now: float) -> list[EndpointId]:
        """Endpoints of whose blocks we lack some: their snapshots should be read."""
        return self._mirror.lost(now)

    def tick(self, now: float, *, listening_since: float | None = 0.0) -> None:
        """Let go of what is over. Cheap; call it several times a second.

        `listening_since`: from when on we could hear writers without a break; None: not now.
        """
        self._charging.tick(now)
        self._table.refresh(now)
        self._mirror.sweep(self.rules.sweep_budget)
        self._index.age(now, self.rules.sweep_budget)
        lost = self._mirror.silent(self.rules.writer_lost_s, now, listening_since=listening_since)
        for endpoint in lost:
            inc = self.endpoints.incarnation(endpoint)
            if inc is not None:
                self._load.writer_lost(inc, now)

    def _hear(self, record: bytes, now: float, behind_s: float) -> None:
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
        if self._mirror.accept(parsed, inc, now, behind_s=behind_s):
            self._take(parsed, inc, now, behind_s)

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
        self.loading.forget(inc)
        self._steps.forget(inc)
        self._unconfirmed.take(inc.endpoint)

    def _take(self, record: Record, inc: Incarnation, now: float, behind_s: float) -> None:
        member = self.endpoints.member(record.endpoint)
        if record.part is None and member is not None and member.has_sidecar:
            # Another picker that writes for an engine knows of its cache alone.
            self._load.writer_seen(inc)
            self.endpoints.heard(record.endpoint)
            if record.status is not None:
                self.endpoints.set_ready(record.endpoint, record.status.ready, now)
                self._load.report(inc, record.status.report, now - behind_s)
        if record.blocks is not None:
            confirmed = self._mirror.change(record.blocks, inc, most=self._most_blocks(inc, now))
            if confirmed:
                self._charging.confirm(inc.endpoint, now)
        for first in record.first_tokens:
            self._charging.first_token(first.decision_id, record.endpoint, now)
        for done in record.done:
            self._charging.done(done, record.endpoint, now)

    def _most_blocks(self, inc: Incarnation, now: float) -> int | None:
        """Own blocks that the engine can hold: each is completed by another block of the engine."""
        load = self._load.load(inc, now)
        if load.total_blocks is None:
            return None
        return load.total_blocks * max(1, -(-load.block_tokens // self.rules.own_block_tokens))

    def _status(self, member: Member, endpoint: Endpoint, now: float) -> EndpointStatus:
        inc = endpoint.incarnation
        return EndpointStatus(
            member=member,
            incarnation=inc,
            ready=self.endpoints.is_ready(member.id, now),
            rung=self.rung(member.id, now),
            blocks=self._mirror.blocks(inc),
            trust=self._trust.of(member.id),
            record_age_s=self._mirror.age_s(member.id, now),
            events=self._mirror.sees_events(member.id),
            endpoint=endpoint,
            elsewhere=self._elsewhere.get(inc, NONE).requests,
        )
