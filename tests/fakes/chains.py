"""A writer that does what a sidecar does, a store, and a reader that does what the picker does."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from epp.errors import StoreError
from epp.framework import EndpointId, Incarnation, PoolId, Rung
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.records import BlockChange, EngineStatus, Record, encode
from epp.state.rules import PoolRules
from epp.state.snapshots import parts
from epp.state.store import Reader, Saved, Stream, Writer
from tests.timing import scaled

POOL = PoolId("p")
KEYS = (1, 2, 3, 4)
LIFE_MS = 5


def new_state(pool: PoolId = POOL, name: str = "a", port: int = 8000) -> PoolState:
    """A pool of one member, whose records count as fresh for 0.7 s."""
    state = PoolState(
        pool,
        Endpoints(),
        PrefixIndex(1_000),
        PredictedIndex(1_000, 60.0),
        LoadBook(),
        rules=PoolRules(fresh_s=0.7),
    )
    member = Member(id=EndpointId(pool, name, port), address=f"127.0.0.1:{port}")
    state.replace([member], 0.0)
    return state


class Follower:
    """What a picker does with the log of a pool of one member."""

    def __init__(self, reader: Reader, state: PoolState) -> None:
        self.reader = reader
        self.state = state
        self.applied = 0
        (self.endpoint,) = (member.id for member in state.endpoints)

    async def read(self, stream: Stream) -> None:
        async for records in stream.records():
            for record in records:
                self.applied += 1
                self.state.apply(record, time.monotonic(), behind_s=stream.behind_s)
            for endpoint in self.state.lost(time.monotonic()):
                self.reader.stream_of(endpoint).reread([endpoint])

    def knows(self, keys: Sequence[int]) -> bool:
        """All of these blocks, of an engine all of whose blocks are known."""
        now = time.monotonic()
        (found,) = self.state.candidates(keys, block_tokens=64, prompt_tokens=10**6, now=now)
        rung = self.state.rung(self.endpoint, now)
        return rung is Rung.PRECISE and found.match.tokens == 64 * len(keys)


class Chain(Follower):
    """`held` is what the engine holds: change it and the reader hears of it."""

    def __init__(self, writer: Writer, reader: Reader, state: PoolState) -> None:
        super().__init__(reader, state)
        self.writer = writer
        self.held: tuple[int, ...] = KEYS
        self.snapshot_s = 0.5
        self.failures: list[str] = []
        self.longest_s = 0.0
        self._said: tuple[int, ...] = ()

    async def write(self) -> None:
        nonce = 0
        while True:
            nonce += 1
            began = time.monotonic()
            try:
                await self.speak(nonce)
            except StoreError as error:
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.failures.append(str(error))
                await asyncio.sleep(0.05)

    async def speak(self, nonce: int) -> None:
        """Claim, and say everything and then what changes, until the store fails."""
        life = Incarnation(self.endpoint, LIFE_MS)
        await self.writer.claim(life, nonce)
        await self.writer.save(self.saved(nonce, 0))
        seq, snapshot_at = 0, time.monotonic() + self.snapshot_s
        while True:
            seq += 1
            await self.writer.append(self.record(nonce, seq))
            if time.monotonic() >= snapshot_at:
                await self.writer.save(self.saved(nonce, seq))
                snapshot_at = time.monotonic() + self.snapshot_s
            await asyncio.sleep(0.02)

    def record(self, nonce: int, seq: int) -> bytes:
        now, before = set(self.held), set(self._said)
        self._said = self.held
        change = BlockChange(stored=tuple(now - before), removed=tuple(before - now))
        return encode(self._head(nonce, seq, change if now != before else None))

    def saved(self, nonce: int, seq: int) -> Saved:
        if seq == 0:
            self._said = self.held
        return Saved(parts(self._head(nonce, seq, None), self._said, {}), b"memory")

    def _head(self, nonce: int, seq: int, blocks: BlockChange | None) -> Record:
        return Record(
            incarnation=Incarnation(self.endpoint, LIFE_MS),
            nonce=nonce,
            seq=seq,
            blocks=blocks,
            status=EngineStatus(ready=True, events=True),
        )

    def precise(self) -> bool:
        """The reader knows exactly what is held."""
        return self.knows(self.held)

    def stepped_down(self) -> bool:
        now = time.monotonic()
        assert self.state.ready(now), "an endpoint is routable whatever becomes of the store"
        return self.state.rung(self.endpoint, now) is Rung.PREDICTED


@asynccontextmanager
async def running_chain(chain: Chain) -> AsyncIterator[Chain]:
    try:
        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(chain.read(stream)) for stream in chain.reader.streams]
            both.append(tasks.create_task(chain.write()))
            try:
                yield chain
            finally:
                for task in both:
                    task.cancel()
    finally:
        await chain.reader.close()
        await chain.writer.close()


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(scaled(seconds)):
        while not condition():  # noqa: ASYNC110 - the condition belongs to somebody else
            await asyncio.sleep(0.01)
