"""Faults of KV events (group C), from an engine's ZeroMQ socket to a reader of the log."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from epp.state.blocks import seed_of, token_keys
from sidecar.app import Sidecar
from tests.fakes.kv_publisher import CLEARED_MAP, Publisher, removed_map, stored_map
from tests.fakes.sidecars import LogReader, quick_settings, running_sidecar
from tests.fakes.upstreams import RawUpstream, answer

SIZE = 64
SEED = seed_of("m")


def tokens(number: int) -> list[int]:
    return list(range(number * 1000, number * 1000 + SIZE))


def key(number: int) -> int:
    """Own key of a one-block prompt."""
    return token_keys(tokens(number), SEED)[0]


def block(number: int, parent: int | None = None) -> dict[str, object]:
    return stored_map([number], tokens(number), SIZE, parent)


@dataclass
class Pod:
    engine: Publisher
    sidecar: Sidecar
    log: LogReader

    async def knows(self, *numbers: int) -> None:
        """Wait until the reader credits exactly these one-block prompts."""
        await self.log.until(lambda view: view.keys == {key(number) for number in numbers})

    def value(self, name: str) -> float:
        return self.sidecar.metrics.registry.get_sample_value(f"epp_sidecar_{name}") or 0.0


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    upstream = RawUpstream(answer(b""))
    async with Publisher() as engine, upstream.running(), LogReader().running() as log:
        settings = quick_settings(
            upstream.port, log.server.port, model="m", kv_events=engine.endpoint
        )
        async with running_sidecar(settings) as sidecar:
            # A subscription takes a moment; until then messages are lost (fault C07).
            while not sidecar.reporter.mirror.sees_events:
                await engine.send([CLEARED_MAP])
                await asyncio.sleep(0.02)
            yield Pod(engine, sidecar, log)


async def test_C01_a_cleared_cache_is_empty_for_every_reader(pod: Pod) -> None:
    """Protected by `EngineBlocks.apply` and by `Outbox.blocks` (a reset drops what waited)."""
    await pod.engine.send([block(number) for number in range(1, 11)])
    await pod.knows(*range(1, 11))
    await pod.engine.send([CLEARED_MAP])
    await pod.knows()
    assert pod.log.view.keys == set()


async def test_C05_after_a_gap_nothing_is_credited_that_may_be_gone(pod: Pod) -> None:
    """Protected by `Sequencer._follow` (a gap that can't be mended forgets)."""
    await pod.engine.send([block(1), block(2), block(3)])
    await pod.knows(1, 2, 3)
    pod.engine.seq += 10
    await pod.engine.send([block(4)])
    await pod.knows(4)
    assert pod.value("kv_event_gaps") == 1


async def test_C05_a_sequence_that_falls_is_an_engine_without_a_cache(pod: Pod) -> None:
    """Protected by `Sequencer._follow` (a fallen sequence forgets)."""
    await pod.engine.send([block(1), block(2)])
    await pod.knows(1, 2)
    pod.engine.seq = 0
    await pod.engine.send([block(3)])
    await pod.knows(3)
    assert pod.value("kv_event_restarts") >= 1


async def test_C19_an_orphan_earns_nothing_and_its_neighbours_do(pod: Pod) -> None:
    """Protected by `EngineBlocks._place`; the orphan is counted on the metrics page."""
    await pod.engine.send([block(5), block(6, parent=999), block(7)])
    await pod.log.until(lambda view: {key(5), key(7)} <= view.keys)
    assert key(6) not in pod.log.view.keys
    assert pod.value("kv_orphan_blocks") == 1


async def test_C24_a_damaged_batch_is_counted_and_may_hide_no_removal(pod: Pod) -> None:
    """Protected by `CacheMirror._apply`, which forgets what a lost batch may have removed."""
    await pod.engine.send([block(1), block(2)])
    await pod.knows(1, 2)
    await pod.engine.send_raw([b"kv", pod.engine.seq.to_bytes(8, "big"), b"\xc1 damaged"])
    pod.engine.seq += 1
    await pod.knows()
    await pod.engine.send([block(3), removed_map([3]), block(4)])
    await pod.knows(4)
    assert pod.value("kv_event_damaged") == 1
