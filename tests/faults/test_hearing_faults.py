"""Faults A that whoever hears the log, or goes on from another's memory, must get right."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.endpoints import Endpoints, Member
from epp.state.engine_blocks import EngineBlocks
from epp.state.events import BlockStored
from epp.state.hearing import follow
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix import PredictedIndex, PrefixIndex
from epp.state.records import BlockChange, EngineStatus, Record, encode
from epp.state.store import OneStream
from epp.state.writing.chronicle import Chronicle

POOL = PoolId("p")
ENGINE = EndpointId(POOL, "a", 8000)
RECORDS = 200
PER_RECORD = 300


class Turns:
    """How many turns the loop gave to somebody else."""

    count = 0


@contextmanager
def counted() -> Iterator[Turns]:
    turns = Turns()

    async def count() -> None:
        while True:
            turns.count += 1
            await asyncio.sleep(0)

    task = asyncio.get_running_loop().create_task(count())
    try:
        yield turns
    finally:
        task.cancel()


class Flood(OneStream):
    """Many records that arrived together, and nothing after them."""

    connected = True
    listening_since: float | None = 0.0

    async def records(self) -> AsyncIterator[list[bytes]]:
        yield [
            encode(
                Record(
                    incarnation=Incarnation(ENGINE, 1),
                    nonce=1,
                    seq=seq,
                    blocks=BlockChange(
                        stored=range(seq * PER_RECORD, (seq + 1) * PER_RECORD), reset=seq == 1
                    ),
                    status=EngineStatus(ready=True, events=True),
                )
            )
            for seq in range(1, RECORDS + 1)
        ]

    def reread(self, _: object) -> None:
        raise AssertionError("nothing was missed")

    async def close(self) -> None:
        """There is nothing to close."""


async def test_A20_a_flood_of_records_leaves_turns_to_decisions() -> None:
    """`hearing.portions` cuts what came together, and `follow` gives a turn after each."""
    index = PrefixIndex(1_000_000)
    pool = PoolState(POOL, Endpoints(), index, PredictedIndex(10, 60.0), LoadBook())
    pool.replace([Member(id=ENGINE, address="127.0.0.1:1", has_sidecar=True)], 0.0)
    flood = Flood()
    with counted() as turns:
        await follow(pool, flood, flood, clock=lambda: 0.0)
    assert index.blocks(Incarnation(ENGINE, 1)) == RECORDS * PER_RECORD
    assert turns.count >= RECORDS / 15


async def test_A20_a_large_memory_of_the_writer_before_leaves_turns_to_answers() -> None:
    """`Chronicle.resume` reads it in a thread."""
    engine = EngineBlocks("m")
    count = 5_000
    stored = BlockStored(
        block_hashes=tuple(range(1, count + 1)),
        parent_block_hash=None,
        tokens=array("I", range(16 * count)).tobytes(),
        block_size=16,
    )
    engine.apply([stored])
    chronicle = Chronicle()
    chronicle.engine_model("m")
    with counted() as turns:
        await chronicle.resume(engine.freeze(1).entries().pack())
    assert chronicle.mirror.unproven
    assert turns.count > 0
