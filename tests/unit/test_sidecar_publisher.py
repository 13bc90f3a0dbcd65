"""The engine's only writer: claims, flushes, heartbeats, and what it does when the log is away."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from epp.framework import EndpointId, PoolId
from epp.state.engine_blocks import Delta
from epp.state.records import Done, EngineStatus, parse
from epp.state.reports import LoadReport
from epp.state.writing import publisher as module
from epp.state.writing.outbox import Outbox
from epp.state.writing.publisher import Kept, Publisher, Tempo, Wrote
from tests.fakes.writers import FakeLog, Fate

ENDPOINT = EndpointId(PoolId("p"), "n", 8000)
pytestmark = [pytest.mark.looptime]


@dataclass
class Bench:
    log: FakeLog
    keys: set[int] = field(default_factory=set)
    life: int = 1000
    status: EngineStatus = field(default_factory=lambda: EngineStatus(ready=True))
    counts: Counter[Wrote] = field(default_factory=Counter)
    blocks: int = 1
    packed_in: set[int] = field(default_factory=set)
    resumed: list[bytes] = field(default_factory=list)
    recalled: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.outbox = Outbox(keys_per_record=4, max_changes=10)
        self.publisher = Publisher(
            ENDPOINT,
            Tempo(),
            outbox=self.outbox,
            kept=lambda: Kept(
                present=sorted(self.keys), tiers={}, pack=self.pack, blocks=self.blocks
            ),
            resume=self.resume,
            recalled=self.recalled,
            status=lambda: self.status,
            start_ms=lambda: self.life,
            open_writer=lambda: self.log,
            count=self.count,
            clock=lambda: asyncio.get_running_loop().time(),
            rng=random.Random(1),
        )

    async def resume(self, memory: bytes) -> None:
        self.resumed.append(memory)

    def pack(self) -> bytes:
        self.packed_in.add(threading.get_ident())
        return b"memory"

    def store(self, *keys: int) -> None:
        self.keys |= set(keys)
        self.outbox.blocks(Delta(reset=False, stored=keys, removed=()))
        self.publisher.wake()

    def restart_engine(self) -> None:
        self.life += 1000
        self.keys.clear()
        self.outbox.blocks(Delta(reset=True, stored=(), removed=()))
        self.publisher.wake()

    def count(self, what: Wrote) -> None:
        self.counts[what] += 1


@asynccontextmanager
async def publishing(
    *fates: Fate, life: int = 1000, log: FakeLog | None = None
) -> AsyncIterator[Bench]:
    bench = Bench(log or FakeLog(fates=list(fates)), life=life)
    async with asyncio.TaskGroup() as tg:
        task = tg.create_task(bench.publisher.run())
        await asyncio.sleep(0.001)
        try:
            yield bench
        finally:
            task.cancel()


async def test_a_snapshot_is_written_at_least_every_twenty_seconds() -> None:
    async with publishing() as bench:
        bench.store(1, 2)
        await asyncio.sleep(61)
        assert 4 <= len(bench.log.saves) <= 5
        assert bench.counts[Wrote.SNAPSHOT] == len(bench.log.saves)
        last = bench.log.saves[-1]
        assert last.memory == b"memory"
        (part,) = (parse(data) for data in last.parts)
        assert part.blocks is not None
        assert part.blocks.stored == (1, 2)


async def test_a_snapshot_waits_until_all_changes_are_said() -> None:
    async with publishing() as bench:
        for key in range(5, 3005):
            bench.store(key)
            await asyncio.sleep(0.01)
        assert len(bench.log.saves) >= 2
        assert bench.log.view.keys == bench.keys


async def test_an_earlier_writers_memory_is_asked_for_once_before_the_first_claim() -> None:
    log = FakeLog(memory=b"remembered")
    async with publishing(log=log) as bench:
        assert bench.resumed == [b"remembered"]
        assert bench.recalled.is_set()
        bench.restart_engine()
        await asyncio.sleep(0.1)
        assert len(log.claims) == 2
        assert bench.resumed == [b"remembered"]


async def test_nobody_waits_for_a_memory_that_cannot_be_asked_for() -> None:
    async with publishing(Fate.LOST) as bench:
        assert bench.recalled.is_set()
        assert bench.log.claims == []
        await asyncio.sleep(module.MAX_BACKOFF_S)
        assert len(bench.log.claims) == 1


async def test_the_more_writers_the_longer_the_flush_period() -> None:
    async with publishing() as bench:
        bench.log.writers = 1000
        await asyncio.sleep(1)
        bench.log.times.clear()
        for key in range(200):
            bench.store(key % 3)
            await asyncio.sleep(0.01)
        gaps = [b - a for a, b in zip(bench.log.times, bench.log.times[1:], strict=False)]
        assert min(gaps) >= 0.4999


async def test_a_life_is_claimed_and_a_snapshot_said() -> None:
    async with publishing() as bench:
        assert [inc.start_ms for inc, _ in bench.log.claims] == [1000]
        assert bench.log.view.status == EngineStatus(ready=True)
        assert bench.log.view.claims == 1


async def test_nothing_is_claimed_before_the_engine_was_seen() -> None:
    async with publishing(life=0) as bench:
        await asyncio.sleep(60)
        assert bench.log.claims == []
        bench.life = 5
        bench.publisher.wake()
        await asyncio.sleep(0.001)
        assert len(bench.log.claims) == 1


async def test_a_heartbeat_comes_every_half_second_when_nothing_happens() -> None:
    async with publishing() as bench:
        await asyncio.sleep(10)
        gaps = [b - a for a, b in zip(bench.log.times, bench.log.times[1:], strict=False)]
        assert gaps
        assert all(gap == pytest.approx(0.5) for gap in gaps)


async def test_changes_are_said_at_once_but_never_more_often_than_the_flush_period() -> None:
    async with publishing() as bench:
        await asyncio.sleep(0.3)
        bench.store(1)
        await asyncio.sleep(0.001)
        assert bench.log.view.keys == {1}
        bench.log.times.clear()
        for key in range(2, 200):
            bench.store(key % 3)
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        gaps = [b - a for a, b in zip(bench.log.times, bench.log.times[1:], strict=False)]
        assert min(gaps) >= 0.0199
        assert bench.log.view.keys == bench.keys


async def test_more_changes_than_fit_into_one_record_are_said_without_pauses() -> None:
    async with publishing() as bench:
        bench.store(*range(8))
        await asyncio.sleep(0.021)
        assert bench.log.view.keys == bench.keys
        assert bench.log.times[-1] == bench.log.times[-2]


async def test_more_changes_than_may_wait_become_a_snapshot_that_takes_a_number() -> None:
    async with publishing() as bench:
        await asyncio.sleep(0.1)
        seq = bench.log.view.seq
        bench.store(*range(40))
        await asyncio.sleep(0.021)
        assert len(bench.log.saves) == 2
        assert bench.log.view.seq == seq + 2
        assert bench.log.view.keys == bench.keys
        assert bench.outbox.empty


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.UNKNOWN])
async def test_after_a_failed_append_the_life_is_claimed_anew_with_a_snapshot(
    fate: Fate,
) -> None:
    async with publishing() as bench:
        bench.store(1, 2)
        await asyncio.sleep(0.1)
        bench.log.fates = [fate]
        bench.store(3)
        bench.outbox.done(Done(decision_id="d"))
        await asyncio.sleep(5)
        assert bench.log.view.keys == {1, 2, 3}
        assert {done.decision_id for done in bench.log.view.done} == {"d"}
        nonces = [nonce for _, nonce in bench.log.claims]
        assert len(nonces) == len(set(nonces)) == 2
        assert bench.counts[Wrote.FAILED] == 1


async def test_claims_that_fail_are_repeated_with_growing_pauses_up_to_a_limit() -> None:
    async with publishing(*[Fate.LOST] * 1000) as bench:
        await asyncio.sleep(100)
        assert 60 < len(bench.log.claims) < 400
        assert not bench.publisher.stands
        bench.log.fates.clear()
        await asyncio.sleep(module.MAX_BACKOFF_S)
        assert bench.publisher.stands


async def test_a_store_that_hangs_is_given_up_and_opened_anew() -> None:
    async with publishing() as bench:
        bench.log.fates = [Fate.HANG]
        bench.store(1)
        await asyncio.sleep(10)
        assert bench.log.closed == 1
        assert bench.log.view.keys == {1}


async def test_a_fenced_writer_is_silent_until_the_engines_next_life() -> None:
    async with publishing() as bench:
        bench.log.fates = [Fate.FENCED]
        bench.store(1)
        await asyncio.sleep(30)
        assert len(bench.log.claims) == 1
        assert bench.counts[Wrote.FENCED] == 1
        assert not bench.publisher.stands
        bench.restart_engine()
        await asyncio.sleep(0.1)
        assert [inc.start_ms for inc, _ in bench.log.claims] == [1000, 2000]


async def test_a_fenced_writer_tries_its_life_again_after_a_minute() -> None:
    async with publishing(Fate.FINE, Fate.FENCED) as bench:
        await asyncio.sleep(module.FENCED_RETRY_S + 1)
        assert len(bench.log.claims) == 2
        assert bench.publisher.stands


async def test_a_restarted_engine_is_claimed_as_a_later_life() -> None:
    async with publishing() as bench:
        bench.store(1, 2)
        await asyncio.sleep(0.1)
        bench.restart_engine()
        bench.store(9)
        await asyncio.sleep(0.1)
        assert [inc.start_ms for inc, _ in bench.log.claims] == [1000, 2000]
        assert bench.log.view.keys == {9}


async def test_a_load_that_changed_is_in_the_next_record() -> None:
    async with publishing() as bench:
        bench.status = EngineStatus(report=LoadReport(waiting=3), ready=False, events=True)
        bench.publisher.wake()
        await asyncio.sleep(0.03)
        assert bench.log.view.status == bench.status


async def test_the_last_words_are_said_before_it_ends() -> None:
    async with publishing() as bench:
        bench.status = EngineStatus(ready=False)
        bench.outbox.done(Done(decision_id="last"))
        bench.publisher.stop()
        await asyncio.sleep(0.1)
        assert bench.log.closed == 1
        assert bench.log.view.status == EngineStatus(ready=False)
        assert [done.decision_id for done in bench.log.view.done] == ["last"]


async def test_the_memory_of_a_large_cache_is_packed_in_a_thread() -> None:
    bench = Bench(FakeLog())
    for blocks in (module.PACKED_AT_ONCE, module.PACKED_AT_ONCE + 1):
        bench.blocks = blocks
        bench.packed_in.clear()
        bench.log.saves.clear()
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(bench.publisher.run())
            while not bench.log.saves:  # noqa: ASYNC110 - the list belongs to the log
                await asyncio.sleep(0.001)
            task.cancel()
        assert bench.log.saves[-1].memory == b"memory"
        on_the_spot = blocks <= module.PACKED_AT_ONCE
        assert (bench.packed_in == {threading.get_ident()}) is on_the_spot
