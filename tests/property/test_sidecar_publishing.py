"""Whatever happens to the log, a reader ends with the truth about the engine's cache."""

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.framework import EndpointId, PoolId
from epp.state.engine_blocks import Delta
from epp.state.records import Done, EngineStatus
from epp.state.writing.outbox import Outbox
from epp.state.writing.publisher import Kept, Publisher, Tempo
from tests.fakes.waiting import until
from tests.fakes.writers import FakeLog, Fate

TEMPO = Tempo(
    flush_s=0.001,
    heartbeat_s=0.01,
    append_timeout_s=0.02,
    snapshot_timeout_s=0.02,
    snapshot_s=0.01,
)
KEYS = st.integers(0, 12)
STEPS = st.one_of(
    st.tuples(st.just("store"), KEYS),
    st.tuples(st.just("remove"), KEYS),
    st.tuples(st.just("done"), KEYS),
    st.tuples(st.just("clear"), KEYS),
    st.tuples(st.just("restart"), KEYS),
    st.tuples(st.just("pause"), KEYS),
)


async def nothing(_: bytes) -> None:
    """No memory is of use here."""


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(STEPS, max_size=40),
    fates=st.lists(st.sampled_from([Fate.FINE, Fate.LOST, Fate.UNKNOWN, Fate.HANG]), max_size=20),
    keys_per_record=st.integers(1, 5),
    max_changes=st.integers(1, 8),
)
def test_a_reader_ends_with_the_truth_after_any_failures(
    steps: list[tuple[str, int]], fates: list[Fate], keys_per_record: int, max_changes: int
) -> None:
    truth: set[int] = set()
    done: list[str] = []
    life = 1
    log = FakeLog(fates=fates)
    outbox = Outbox(keys_per_record=keys_per_record, max_changes=max_changes)

    async def play() -> None:
        nonlocal life
        publisher = Publisher(
            EndpointId(PoolId("p"), "n", 1),
            TEMPO,
            outbox=outbox,
            kept=lambda: Kept(present=sorted(truth), tiers={}, pack=bytes, blocks=0),
            resume=nothing,
            recalled=asyncio.Event(),
            status=lambda: EngineStatus(ready=True),
            start_ms=lambda: life,
            open_writer=lambda: log,
            count=lambda _: None,
            clock=asyncio.get_running_loop().time,
            rng=_Impatient(),
        )
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(publisher.run())
            for what, key in steps:
                match what:
                    case "store":
                        truth.add(key)
                        outbox.blocks(Delta(reset=False, stored=(key,), removed=()))
                    case "remove":
                        truth.discard(key)
                        outbox.blocks(Delta(reset=False, stored=(), removed=(key,)))
                    case "clear" | "restart":
                        truth.clear()
                        life += what == "restart"
                        outbox.blocks(Delta(reset=True, stored=(), removed=()))
                    case "done":
                        done.append(f"{len(done)}")
                        outbox.done(Done(decision_id=done[-1]))
                    case "pause":
                        await asyncio.sleep(0.001 * key / 4)
                publisher.wake()
                await asyncio.sleep(0)
            await until(lambda: not log.fates and _all_said() and _settled())
            task.cancel()

    def _all_said() -> bool:
        """Nothing waits, nor is on its way: that may be lost yet."""
        return outbox.empty and outbox._under_way is None

    def _settled() -> bool:
        incarnation = log.view.incarnation
        return incarnation is not None and incarnation.start_ms == life

    asyncio.run(play())
    assert log.view.keys == truth
    assert set(done) <= {report.decision_id for report in log.view.done}


class _Impatient(random.Random):
    """No pauses, so that many failures fit into one example."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0
