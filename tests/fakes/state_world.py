"""The whole state path in virtual time: model engines, and our own classes from events to matches.

An engine here is a set of blocks that says what changes in it; its mirror, outbox, publisher and
writer are a sidecar's, reader and pool state are a picker's. Only sockets and clocks are made up.
"""

import asyncio
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from epp.framework import EndpointId, PoolId, Rung, Source
from epp.state.blocks import OWN_BLOCK_TOKENS, seed_of, token_keys
from epp.state.endpoints import Endpoints, Member
from epp.state.engine_blocks import Delta
from epp.state.entries import Entries
from epp.state.events import Frame
from epp.state.hearing import portions
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix import PredictedIndex, PrefixIndex
from epp.state.records import EngineStatus
from epp.state.store import Reader, Stream, Writer
from epp.state.writing.cache import CacheMirror
from epp.state.writing.outbox import Outbox
from epp.state.writing.publisher import Kept, Publisher, Tempo
from tests.fakes.kv_publisher import CLEARED_MAP, payload, removed_map, stored_map

POOL = PoolId("p")
MODEL = "m"
CHAINS, LENGTH = 3, 4
SNAPSHOT_S = 4.0
TEMPO = Tempo(snapshot_s=SNAPSHOT_S)
Block = tuple[int, int]
"""Chain, and place in it."""


def tokens_of(chain: int, places: range) -> list[int]:
    return [100 * chain + place + 1 for place in places for _ in range(OWN_BLOCK_TOKENS)]


CHAIN_KEYS = [
    token_keys(tokens_of(chain, range(LENGTH)), seed_of(MODEL)) for chain in range(CHAINS)
]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Nobody waits: when nothing is ready the clock jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is not None:
            self._loop.now += max(0.0, timeout)
        return ready


class ModelEngine:
    """What it holds is the truth. It keeps its last messages for replays."""

    KEEPS: ClassVar = 12

    def __init__(self, number: int, loop: VirtualLoop) -> None:
        self.id = EndpointId(POOL, f"engine-{number}", 8000)
        self.life = 1000
        self.cached: set[Block] = set()
        self.left_at: dict[Block, float] = {}
        """When a block went that is not there."""
        self.said: deque[Frame] = deque(maxlen=self.KEEPS)
        self._seq = 0
        self._loop = loop

    def store(self, chain: int, length: int) -> Frame:
        events = []
        for place in range(length):
            if (chain, place) not in self.cached:
                parent = None if place == 0 else _hash(chain, place - 1)
                tokens = tokens_of(chain, range(place, place + 1))
                one = stored_map([_hash(chain, place)], tokens, OWN_BLOCK_TOKENS, parent)
                events.append(one)
                self.cached.add((chain, place))
        return self._say(events)

    def evict(self, chain: int, place: int) -> Frame:
        """Tails go first."""
        gone = [block for block in self.cached if block[0] == chain and block[1] >= place]
        self._drop(gone)
        return self._say([removed_map([_hash(*block)]) for block in sorted(gone, reverse=True)])

    def clear(self) -> Frame:
        self._drop(list(self.cached))
        return self._say([CLEARED_MAP])

    def restart(self) -> None:
        self._drop(list(self.cached))
        self.life += 1000
        self.said.clear()
        self._seq = 0

    def depth(self, chain: int) -> int:
        return next((at for at in range(LENGTH) if (chain, at) not in self.cached), LENGTH)

    def _drop(self, gone: list[Block]) -> None:
        self.cached -= set(gone)
        self.left_at.update(dict.fromkeys(gone, self._loop.time()))

    def _say(self, events: list[dict[str, Any]]) -> Frame:
        frame = Frame(b"", self._seq, payload(events))
        self._seq += 1
        self.said.append(frame)
        return frame


def _hash(chain: int, place: int) -> int:
    return 1000 * chain + place + 1


class ModelSidecar:
    """The writing side of one engine; `restart` forgets all that was not in the log."""

    POLL_S: ClassVar = 0.25

    def __init__(self, world: "World", engine: ModelEngine) -> None:
        self._world = world
        self.engine = engine
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: list[Frame] = []
        self._wake: Callable[[], None] = lambda: None
        self.is_up = False
        self.start()

    def start(self) -> None:
        loop = self._world.loop
        self.is_up = True
        self._waiting, self._life = [], self.engine.life
        self._life_at_start = self._life
        self.mirror = CacheMirror(self._changed, replays=True, clock=loop.time)
        self.outbox = Outbox(keys_per_record=3, max_changes=6)
        self._recalled = asyncio.Event()
        self.publisher = Publisher(
            self.engine.id,
            TEMPO,
            outbox=self.outbox,
            kept=self._kept,
            resume=self._resume,
            recalled=self._recalled,
            status=lambda: EngineStatus(
                ready=True, events=self.mirror.sees_events, partial=self.mirror.partial
            ),
            start_ms=lambda: self._life,
            open_writer=self._world.open_writer,
            count=lambda _: None,
            clock=loop.time,
            rng=self._world.rng,
        )
        self._wake = self.publisher.wake
        self.mirror.serve(MODEL)
        self._tasks = [loop.create_task(self.publisher.run()), loop.create_task(self._poll())]

    async def stop(self) -> None:
        self.is_up = False
        await ended(self._tasks)

    def hear(self, frame: Frame) -> None:
        if self.is_up:
            self._waiting.append(frame)
            self._take()

    def _take(self) -> None:
        if not self._recalled.is_set():
            return
        waiting, self._waiting = self._waiting, []
        if self._life != self._life_at_start:
            self._life_at_start, waiting = self._life, []  # as `Following` does
        for frame in waiting:
            self.mirror.on(frame)
        self._replay()

    def _replay(self) -> None:
        while (wanted := self.mirror.wanted) is not None:
            for frame in list(self.engine.said):
                if frame.seq >= wanted.start and self.mirror.wanted is wanted:
                    self.mirror.replayed(frame)
            if self.mirror.wanted is wanted:
                self.mirror.replay_ended(complete=True)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.POLL_S)
            self._take()
            if self._life != self.engine.life:
                self._life = self.engine.life
                self.mirror.new_life()
                self.publisher.wake()
            if self._recalled.is_set():
                self.mirror.look()
                self._replay()

    def _changed(self, delta: Delta) -> None:
        self.outbox.blocks(delta)
        self._wake()

    def _kept(self) -> Kept:
        return Kept(
            present=self.mirror.present(),
            tiers=self.mirror.tiers_present(),
            pack=self.mirror.entries().pack,
            blocks=0,
        )

    async def _resume(self, memory: bytes) -> None:
        entries = Entries.unpack(memory)
        self.mirror.resume(entries, entries.engine_seq)


class ModelReplica:
    """The reading side; `flowing` is cleared while it is too slow to read."""

    def __init__(self, world: "World", reader: Reader) -> None:
        self._loop = world.loop
        self.reader = reader
        self.flowing = asyncio.Event()
        self.flowing.set()
        index = PrefixIndex(1_000)
        self.state = PoolState(POOL, Endpoints(), index, PredictedIndex(1_000, 60.0), LoadBook())
        members = [
            Member(id=engine.id, address=f"127.0.0.1:{at + 1}")
            for at, engine in enumerate(world.engines)
        ]
        self.state.replace(members, world.loop.time())
        loop = world.loop
        self._tasks = [loop.create_task(self._read(stream)) for stream in reader.streams]
        self._tasks.append(loop.create_task(self._tick()))

    async def stop(self) -> None:
        await ended(self._tasks)
        await self.reader.close()

    async def _read(self, stream: Stream) -> None:
        async for records in stream.records():
            came = self._loop.time()
            for some in portions(records):
                await self.flowing.wait()
                now = self._loop.time()
                self.state.apply_all(some, now, behind_s=stream.behind_s + (now - came))
            for endpoint in self.state.lost(self._loop.time()):
                self.reader.stream_of(endpoint).reread([endpoint])

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            now = self._loop.time()
            self.state.tick(now, listening_since=self.reader.listening_since)

    def credit(self, engine: ModelEngine, chain: int) -> int:
        """Leading blocks that decisions believe by the engine's word."""
        keys = CHAIN_KEYS[chain]
        found = self.state.candidates(
            keys, block_tokens=OWN_BLOCK_TOKENS, prompt_tokens=10**6, now=self._loop.time()
        )
        (one,) = (one for one in found if one.id == engine.id)
        return one.match.tokens // OWN_BLOCK_TOKENS if one.match.source is Source.PRECISE else 0

    def precise(self, engine: ModelEngine) -> bool:
        return self.state.rung(engine.id, self._loop.time()) is Rung.PRECISE


class World:
    """Two engines with their sidecars, and replicas, around a store of one kind."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.rng = random.Random(7)
        self.engines = [ModelEngine(number, self.loop) for number in range(2)]
        self.sidecars: list[ModelSidecar] = []
        self.replicas: list[ModelReplica] = []

    def open_writer(self) -> Writer:
        raise NotImplementedError

    def open_reader(self) -> Reader:
        raise NotImplementedError

    def begin(self) -> None:
        async def begin() -> None:
            self.sidecars = [ModelSidecar(self, engine) for engine in self.engines]
            self.replicas = [ModelReplica(self, self.open_reader())]

        self.run(begin())
        self.pass_time(1.0)

    def start(self, sidecar: ModelSidecar) -> None:
        async def start() -> None:
            sidecar.start()

        self.run(start())

    def join(self) -> None:
        async def join() -> None:
            self.replicas.append(ModelReplica(self, self.open_reader()))

        self.run(join())

    def run(self, what: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(what)

    def pass_time(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def end(self) -> None:
        async def end() -> None:
            for one in (*self.sidecars, *self.replicas):
                await one.stop()

        self.run(end())
        self.loop.close()


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
