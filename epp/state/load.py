"""What every endpoint has to do: its own reports, and the reservations of our decisions.

A reservation is bound to one life of an engine and released exactly once (DESIGN 5.3). It ends by
the first of: `finish` (the sidecar's `done`, or the end of the answer seen on the stream, or a
reset before the response headers); `forget` (that life is over); or, after `leave` (the stream
ended while the answer may still run), by the sidecar's `done` when a writer is there, else by an
estimate: the prefill drains at the endpoint's observed speed, and the decode part ends when a
report received after the response headers shows it, at the latest after the pool's p99 duration.

While a stream lives no clock ends its reservation, however long it takes (fault B14). Ends that
come late, twice, or for an earlier life find nothing and change nothing (fault B13).
"""

import heapq
from collections.abc import Mapping

from epp.framework import Incarnation, Load, Lora

from . import measures
from .measures import LoadRules
from .pace import Durations, Paces
from .reports import LoadReport
from .reservation import NONE, Life, Reservation, Sums

__all__ = ["LoadBook", "LoadReport", "LoadRules", "Sums"]

_MOST_TOKENS = 2**31


class LoadBook:
    """All reservations of one pool. Every method is idempotent per request; no count is negative.
    `untracked` counts decisions that were not charged because the book was full. One reader may
    keep rows of numbers of all lives; `changed` tells it which of them to read again.
    """

    def __init__(self, rules: LoadRules | None = None) -> None:
        self.rules = rules or LoadRules()
        self.untracked = 0
        self._lives: dict[Incarnation, Life] = {}
        self._requests: dict[str, Reservation] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._durations = Durations(prior_s=self.rules.duration_prior_s)
        self._pace = Paces(window=64)
        self._settled: list[str] = []
        self._changed: set[Life] = set()
        self._draining: set[Life] = set()
        self._over: set[Incarnation] = set()
        self._shared: set[Incarnation] = set()
        """Those on which other replicas have reservations."""

    def __len__(self) -> int:
        return len(self._requests)

    # What our decisions charge

    def reserve(
        self,
        inc: Incarnation,
        request_id: str,
        *,
        prefill_tokens: int,
        decode_tokens: int,
        has_writer: bool,
        now: float,
    ) -> bool:
        """Charge one request: uncached prompt tokens, and KV tokens that it will come to hold.

        Without prefill tokens its first token says nothing about the speed of prefills here.
        `has_writer`: a sidecar passes it on and will say when it is done. False when the request
        is known already or the book is full.
        """
        if request_id in self._requests:
            return False
        if len(self._requests) >= self.rules.max_reservations:
            self.untracked += 1
            return False
        life = self._life(inc)
        held = self._put(
            life,
            request_id,
            prefill_tokens=prefill_tokens,
            decode_tokens=decode_tokens,
            has_writer=has_writer,
            born_at=now,
        )
        held.ahead_tokens = life.prefill_tokens if held.prefill_tokens else 0
        return True

    def move(
        self,
        inc: Incarnation,
        request_id: str,
        *,
        prefill_tokens: int,
        decode_tokens: int,
        has_writer: bool,
    ) -> bool:
        """Another life serves the request: its charge goes there, with its age and its progress.

        Its first token will say nothing about the speed of prefills there, for a part of the time
        went by elsewhere. False when it is over, there already, or its stream has ended.
        """
        old, life = self._requests.get(request_id), self._life(inc)
        if old is None or old.life is life or old.estimated or old.waits_for_done:
            return False
        self._end(old)
        held = self._put(
            life,
            request_id,
            prefill_tokens=prefill_tokens,
            decode_tokens=decode_tokens,
            has_writer=has_writer,
            born_at=old.born_at,
        )
        held.headers_at, held.first_at = old.headers_at, old.first_at
        if held.first_at is not None:
            life.prefilled(held)
            life.await_report(held)
        return True

    def teaches_nothing(self, request_id: str) -> None:
        """Its first token will say nothing of the speed of prefills."""
        held = self._requests.get(request_id)
        if held is not None:
            held.ahead_tokens = 0

    def response_headers(self, request_id: str, now: float) -> None:
        """The answer began. No sign that its prefill ended: streamed answers begin with it."""
        held = self._requests.get(request_id)
        if held is not None and held.headers_at is None:
            held.headers_at = now

    def first_token(self, request_id: str, now: float) -> None:
        """The first byte of the answer's body was seen, here or by the sidecar."""
        held = self._requests.get(request_id)
        if held is None or held.first_at is not None:
            return
        held.first_at = now
        if held.pending:
            elapsed = now - held.born_at
            for pace in (held.life.pace, self._pace):
                pace.prefill.observe(held.ahead_tokens, elapsed)
            held.life.prefilled(held)
            self._changed.add(held.life)
        if held.shown and held.estimated:
            self._give_up(held)
        else:
            held.life.await_report(held)

    def finish(self, request_id: str, now: float, *, measured: bool = True) -> bool:
        """The request is over. `measured`: its duration says something about the pool's answers.

        False when it was over already, or never ours.
        """
        held = self._requests.get(request_id)
        if held is None:
            return False
        if measured:
            self._durations.add(now - held.born_at)
        self._end(held)
        return True

    def leave(self, request_id: str, now: float) -> None:
        """The stream ended after the response headers: the answer may well be running."""
        held = self._requests.get(request_id)
        if held is None or held.estimated or held.waits_for_done:
            return
        if held.has_writer and held.life.writer:
            held.waits_for_done = True
            self._set_deadline(held, now + self.rules.done_cap_s)
        else:
            self._estimate(held, now)

    def report(self, inc: Incarnation, report: LoadReport, now: float) -> None:
        """Measured at `now`: shows all requests that had begun before. Older ones say nothing."""
        life = self._life(inc)
        if life.report is not None and now < life.report_at:
            return
        life.report, life.report_at = report, now
        if report.kv_usage is not None and report.total_blocks is not None:
            life.pace.in_use.add(report.kv_usage * report.total_blocks, now)
        self._changed.add(life)
        still: list[Reservation] = []
        for held in life.unshown:
            began = held.first_at if held.first_at is not None else held.headers_at
            if held.ended:
                continue
            if began is None or began >= now:
                still.append(held)
                continue
            life.show(held)
            if held.estimated and not held.pending:
                self._give_up(held)
        life.unshown = still

    def stepped(self, inc: Incarnation, steps: int, took_s: float, of_s: float, now: float) -> None:
        """Its answers took `took_s` for `steps` from token to token, within the last `of_s`."""
        life = self._lives.get(inc)
        if life is None:
            return
        blocks = life.blocks_since(now - of_s)
        for pace in (life.pace, self._pace):
            pace.decoding.observe(steps + 1, took_s, blocks)
        self._changed.add(life)

    def elsewhere(self, sums: Mapping[Incarnation, Sums], now: float) -> None:
        """All that other replicas have reserved; it replaces what was said of them before."""
        for inc in self._shared.union(sums):
            life = self._life(inc) if inc in sums else self._lives.get(inc)
            speed = self.prefill_tokens_per_s(inc)
            if life is not None and life.hear(sums.get(inc, NONE), speed, now):
                self._changed.add(life)
        self._shared = set(sums)

    def writer_seen(self, inc: Incarnation) -> None:
        """A sidecar speaks for this life: its `done` is worth waiting for."""
        self._life(inc).writer = True

    def writer_lost(self, inc: Incarnation, now: float) -> None:
        """Nobody will say what becomes of requests whose streams have ended: estimate them."""
        life = self._lives.get(inc)
        if life is None or not life.writer:
            return
        life.writer = False
        for held in [held for held in life.requests.values() if held.waits_for_done]:
            self._estimate(held, now)

    def adopt(self, unborn: Incarnation, inc: Incarnation) -> None:
        """The start of an endpoint's first life became known: its reservations go on."""
        life = self._lives.pop(unborn, None)
        if life is not None:
            self.forget(inc)
            life.incarnation = inc
            self._lives[inc] = life
            self._shared.add(inc)
            self._changed.add(life)

    def forget(self, inc: Incarnation) -> None:
        """That life is over: all its reservations are released at once."""
        life = self._lives.pop(inc, None)
        if life is not None:
            self._changed.discard(life)
            self._draining.discard(life)
            self._over.add(inc)
            for held in life.requests.values():
                held.ended = True
                del self._requests[held.id]
                self._settled.append(held.id)

    def tick(self, now: float) -> list[str]:
        """End what is due. Cheap; call it several times a second.

        Returns the requests that nobody ended since the last call: by estimate, or by `forget`.
        """
        while self._deadlines and self._deadlines[0][0] <= now:
            due, request_id = heapq.heappop(self._deadlines)
            held = self._requests.get(request_id)
            if held is None or held.deadline != due:
                continue
            if held.waits_for_done:
                self._estimate(held, now)
            else:
                self._give_up(held)
        for life in self._lives.values():
            self._settle(life, now)
            if life.others.prefill_tokens:
                self._changed.add(life)
        settled, self._settled = self._settled, []
        return settled

    # What the request path reads

    def load(self, inc: Incarnation, now: float) -> Load:
        life = self._lives.get(inc)
        if life is None:
            return Load()
        self._settle(life, now)
        return measures.load_of(life, self.rules, now)

    def changed(self, now: float) -> list[Incarnation]:
        """Lives whose numbers may be others than when this was called last."""
        for life in list(self._draining):
            self._settle(life, now)
            if life.draining:
                self._changed.add(life)
            else:
                self._draining.discard(life)
        found = [*self._over, *(life.incarnation for life in self._changed)]
        self._changed.clear()
        self._over.clear()
        return found

    def row(self, inc: Incarnation, now: float) -> tuple[tuple[float, ...], Lora | None]:
        """Numbers of one life as `measures` names them, and its adapters, however old."""
        life = self._lives.get(inc)
        if life is None:
            return measures.EMPTY, None
        self._settle(life, now)
        row = measures.row_of(life, self.rules, now)
        return row, None if life.report is None else life.report.lora

    def sums(self) -> dict[Incarnation, Sums]:
        """Absolute sums of our own per life; lives without reservations are left out."""
        return {life.incarnation: life.sums for life in self._lives.values() if life.requests}

    def prefill_tokens_per_s(self, inc: Incarnation) -> float:
        """Observed speed of this life, else of the pool, else the prior."""
        life = self._lives.get(inc)
        own = life.pace.prefill.measured if life is not None else None
        return own or self.pool_speeds[0]

    @property
    def pool_speeds(self) -> tuple[float, float, float]:
        """Of a life whose own were not observed: prompt tokens per second, seconds of a step, and
        what a block in use adds to it."""
        return self._pace.speeds(self.rules.prefill_tokens_per_s)

    @property
    def p99_duration_s(self) -> float:
        return self._durations.p99_s

    # Mechanics

    def _put(
        self,
        life: Life,
        request_id: str,
        *,
        prefill_tokens: int,
        decode_tokens: int,
        has_writer: bool,
        born_at: float,
    ) -> Reservation:
        block = measures.block_tokens(life, self.rules)
        held = Reservation(
            request_id,
            life,
            prefill_tokens=min(_MOST_TOKENS, max(0, prefill_tokens)),
            decode_blocks=-(-min(_MOST_TOKENS, max(0, decode_tokens)) // block),
            has_writer=has_writer,
            born_at=born_at,
        )
        self._requests[request_id] = life.requests[request_id] = held
        life.pending += 1
        life.prefill_tokens += held.prefill_tokens
        life.decode_blocks += held.decode_blocks
        self._changed.add(life)
        return held

    def _life(self, inc: Incarnation) -> Life:
        return self._lives.get(inc) or self._lives.setdefault(inc, Life(inc))

    def _end(self, held: Reservation) -> None:
        if not held.ended:
            held.ended = True
            held.life.prefilled(held)
            held.life.show(held)
            del held.life.requests[held.id]
            del self._requests[held.id]
            self._changed.add(held.life)

    def _give_up(self, held: Reservation) -> None:
        self._settled.append(held.id)
        self._end(held)

    def _set_deadline(self, held: Reservation, at: float) -> None:
        held.deadline = at
        heapq.heappush(self._deadlines, (at, held.id))
        if len(self._deadlines) > 4 * self.rules.max_reservations:
            live = self._requests.values()
            self._deadlines = [(h.deadline, h.id) for h in live if h.deadline is not None]
            heapq.heapify(self._deadlines)

    def _estimate(self, held: Reservation, now: float) -> None:
        life = held.life
        self._changed.add(life)
        held.estimated, held.waits_for_done = True, False
        latest = held.born_at + self._durations.p99_s
        if latest <= now:
            self._give_up(held)
            return
        self._set_deadline(held, latest)
        if held.headers_at is None:
            held.headers_at = now
        began = held.headers_at if held.first_at is None else held.first_at
        if life.report is not None and life.report_at > began:
            life.show(held)
        life.await_report(held)
        if held.pending:
            life.drain(held, self.prefill_tokens_per_s(life.incarnation))
            self._draining.add(life)
            self._settle(life, now)
        elif held.shown:
            self._give_up(held)

    def _settle(self, life: Life, now: float) -> None:
        for held in life.drained(now):
            self._changed.add(life)
            if held.shown:
                self._give_up(held)
