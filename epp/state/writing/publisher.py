"""Appends what is known about an engine to the log, as the engine's only writer.

One claim per life of the engine, and a snapshot; then a record whenever something changed, at most
every flush period, and a heartbeat, and now and then a snapshot. The more writers share the log the
longer is the period. When the log is away, or refused, or does not answer in time, nothing is
assumed: after a pause the life is claimed anew and a snapshot said first.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import structlog

from epp.errors import Fenced, StoreError
from epp.framework import EndpointId, Incarnation
from epp.state.records import EngineStatus, Record, encode
from epp.state.snapshots import parts
from epp.state.store import Saved, Writer
from epp.state.store.absence import Absence

from .outbox import Outbox

BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0
FENCED_RETRY_S = 60.0
"""After another writer took over: claim the same life again if it has not ended by then."""
CLOSE_S = 1.0
"""How long a writer may take to close."""
PACKED_AT_ONCE = 2_000
"""Engine blocks whose memory is packed on the spot, in some milliseconds; more need a thread, so
that answers go on meanwhile."""
RECORDS_PER_S = 2_000
"""Budget of all writers of a log together."""

log = structlog.get_logger(__name__)
T = TypeVar("T")


class Wrote(StrEnum):
    """What a publisher did, or what befell it."""

    CLAIM = "claims"
    RECORD = "records"
    SNAPSHOT = "snapshots"
    FENCED = "fenced"
    """Another writer took over."""
    FAILED = "store-failures"
    """A claim, a record or a snapshot that is not known to be in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tempo:
    """How often a writer speaks, and how long the store may take."""

    flush_s: float = 0.02
    """Shortest time between two records."""
    heartbeat_s: float = 0.5
    """Longest time between two records; a picker calls a report stale after 2 s."""
    snapshot_s: float = 20.0
    """Longest time between two snapshots."""
    snapshot_timeout_s: float = 10.0
    """For one of them, which may have megabytes."""
    append_timeout_s: float = 2.0
    """For one record, before the store counts as away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """All that there is to say of the engine's cache."""

    present: Sequence[int]
    """Own keys on the GPU."""
    tiers: Mapping[str, Sequence[int]]
    """Own keys on each slower tier."""
    pack: Callable[[], bytes]
    """Makes the memory for the writer after us, as of this moment; it may run in a thread."""
    blocks: int
    """Of the engine, in that memory."""


@dataclass(slots=True)
class _Claim:
    """The right to speak for one life, and how much was said."""

    incarnation: Incarnation
    nonce: int
    seq: int = 0


class Publisher:
    """Speaks for one engine. `run` in a task; `wake` when there is something to say.

    `recalled` is set when it was asked, once, what a writer before us knew; `count` hears what was
    done.
    """

    def __init__(
        self,
        endpoint: EndpointId,
        tempo: Tempo,
        *,
        outbox: Outbox,
        kept: Callable[[], Kept],
        resume: Callable[[bytes], Awaitable[None]],
        recalled: asyncio.Event,
        status: Callable[[], EngineStatus],
        start_ms: Callable[[], int],
        open_writer: Callable[[], Writer],
        count: Callable[[Wrote], None],
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._endpoint = endpoint
        self._tempo = tempo
        self._outbox = outbox
        self._kept = kept
        self._resume = resume
        self._recalled = recalled
        self._status = status
        self._start_ms = start_ms
        self._open_writer = open_writer
        self._count = count
        self._clock = clock
        self._rng = rng
        self._dirty = asyncio.Event()
        self._writer: Writer | None = None
        self._stopping = False
        self._last_at = float("-inf")
        self._snapshot_at = float("-inf")
        """When the next snapshot is due."""
        self._failures = 0
        self._absence = Absence(clock, endpoint=str(endpoint))
        self.stands = False
        """Whether our claim stands, as far as we know."""

    def wake(self) -> None:
        """Something changed. May be called at any time from the event loop."""
        self._dirty.set()

    async def run(self) -> None:
        """Publish until `stop`, whose last words are said first, or until cancelled."""
        try:
            while not self._stopping:
                await self._engine_seen()
                await self._one_claim(self._start_ms())
        finally:
            await self._drop_writer()

    def stop(self) -> None:
        """Say what is left, and end `run`. While the log is away `run` does not end by itself."""
        self._stopping = True
        self._dirty.set()

    async def _one_claim(self, life: int) -> None:
        try:
            await self._publish_life(life)
        except Fenced:
            self._count(Wrote.FENCED)
            where = str(self._endpoint)
            log.warning("another writer speaks for this engine", endpoint=where, life=life)
            await self._life_over(life, FENCED_RETRY_S)
        except StoreError as error:
            self._count(Wrote.FAILED)
            self._absence.failed(str(error))
            await asyncio.sleep(self._pause())

    async def _publish_life(self, life: int) -> None:
        """Claim, then flush until the engine's life is another one. Raises StoreError, Fenced."""
        if self._writer is None:
            self._writer = self._open_writer()
        claim = _Claim(Incarnation(self._endpoint, life), self._rng.getrandbits(63) + 1)
        if not self._recalled.is_set():
            await self._recall(claim.incarnation)
        await self._in_time(self._writer.claim(claim.incarnation, claim.nonce))
        self._count(Wrote.CLAIM)
        self._absence.answered()
        self.stands = True
        self._outbox.restart()
        try:
            await self._state(claim)
            while self._start_ms() == life:
                ending = self._stopping
                await self._flush(claim)
                if ending:
                    return
                self._failures = 0
                await self._due()
        finally:
            self.stands = False

    async def _recall(self, incarnation: Incarnation) -> None:
        """Go on from what a writer before us knew of this life. Asked once, whatever comes of it:
        events wait for it."""
        assert self._writer is not None
        try:
            limit_s = self._tempo.snapshot_timeout_s
            memory = await self._in_time(self._writer.recall(incarnation), limit_s)
            # The engine may have restarted while the log kept us waiting: its blocks are others.
            if memory is not None and self._start_ms() == incarnation.start_ms:
                await self._resume(memory)
        finally:
            self._recalled.set()

    async def _state(self, claim: "_Claim") -> None:
        """Say everything in a snapshot."""
        kept = self._kept()
        said = self._snapshot(claim, claim.seq, kept)
        self._outbox.stated()
        await self._save(said, kept)

    def _snapshot(self, claim: "_Claim", seq: int, kept: Kept) -> tuple[bytes, ...]:
        head = Record(
            incarnation=claim.incarnation, nonce=claim.nonce, seq=seq, status=self._status()
        )
        return parts(head, kept.present, kept.tiers)

    async def _save(self, said: tuple[bytes, ...], kept: Kept) -> None:
        assert self._writer is not None
        try:
            if kept.blocks > PACKED_AT_ONCE:
                memory = await asyncio.to_thread(kept.pack)
            else:
                memory = kept.pack()
            saved = Saved(said, memory)
            await self._in_time(self._writer.save(saved), self._tempo.snapshot_timeout_s)
        except BaseException:
            self._outbox.failed()
            raise
        self._count(Wrote.SNAPSHOT)
        # Not all of a pool at once, nor those that began together together for ever.
        pause = self._tempo.snapshot_s * self._rng.uniform(0.75, 1.0)
        self._snapshot_at = self._clock() + pause

    async def _flush(self, claim: "_Claim") -> None:
        """Append what there is, and load in any case."""
        self._dirty.clear()
        await self._append(claim)
        while self._outbox.crowded and self._start_ms() == claim.incarnation.start_ms:
            await self._append(claim)
        if not self._outbox.empty:
            self._dirty.set()

    async def _append(self, claim: "_Claim") -> None:
        assert self._writer is not None
        if self._outbox.owes_snapshot:
            claim.seq += 1  # skipped, so that who followed the records sees a jump and reads it
            await self._state(claim)
        parcel = self._outbox.take()
        record = Record(
            incarnation=claim.incarnation,
            nonce=claim.nonce,
            seq=claim.seq + 1,
            blocks=parcel.blocks,
            status=self._status(),
            first_tokens=parcel.first_tokens,
            done=parcel.done,
        )
        # Made at the same moment as the record, so that it includes that and no more.
        due = self._outbox.settled and self._clock() >= self._snapshot_at
        kept = self._kept() if due else None
        said = () if kept is None else self._snapshot(claim, record.seq, kept)
        try:
            await self._in_time(self._writer.append(encode(record)))
        except BaseException:
            self._outbox.failed()
            raise
        self._outbox.sent()
        claim.seq += 1
        self._last_at = self._clock()
        self._count(Wrote.RECORD)
        if kept is not None:
            await self._save(said, kept)

    async def _due(self) -> None:
        """Wait for news, no shorter than a flush period and no longer than a heartbeat."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._last_at + self._tempo.heartbeat_s - self._clock()):
                await self._dirty.wait()
        writers = 1 if self._writer is None else self._writer.writers
        period_s = max(self._tempo.flush_s, writers / RECORDS_PER_S)
        pause = self._last_at + period_s - self._clock()
        if pause > 0:
            await asyncio.sleep(pause)

    async def _engine_seen(self) -> None:
        while not self._start_ms() and not self._stopping:
            self._dirty.clear()
            await self._dirty.wait()

    async def _life_over(self, life: int, most_s: float) -> None:
        """Wait for another life of the engine, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while self._start_ms() == life and not self._stopping:
                    self._dirty.clear()
                    await self._dirty.wait()

    async def _in_time(self, call: Awaitable[T], limit_s: float | None = None) -> T:
        """Await a call of the writer; a writer that hangs is given up."""
        try:
            async with asyncio.timeout(limit_s or self._tempo.append_timeout_s):
                return await call
        except TimeoutError as error:
            await self._drop_writer()
            raise StoreError("the store did not answer in time") from error

    def _pause(self) -> float:
        """Back-off with full jitter, so that a pool of writers does not return in step."""
        self._failures += 1
        return self._rng.uniform(0, min(MAX_BACKOFF_S, BACKOFF_S * 2 ** min(self._failures, 10)))

    async def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(StoreError, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await writer.close()
