"""`epp bench follow`: what it costs a picker to follow a whole pool, and how soon it knows.

Another process says to the Redis that is named what the sidecars of so many engines would say, by
their own scripts, as often as they may (`RECORDS_PER_S`). Here a picker's reader follows, while
decisions are asked for. An event happens at any moment between two flushes of its sidecar.
"""

import asyncio
import json
import multiprocessing
import random
import time
from collections import deque
from dataclasses import asdict, dataclass, field

import numpy as np
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from epp.framework import EndpointId, Incarnation, PoolId
from epp.sim.benches.measure import quantile
from epp.state.endpoints import Endpoints, Member
from epp.state.keys import PackedKeys
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix import PredictedIndex, PrefixIndex
from epp.state.records import BlockChange, EngineStatus, FirstToken, Record, encode, parse
from epp.state.snapshots import parts
from epp.state.store import layout, scripts
from epp.state.store.frames import frame
from epp.state.store.place import Access
from epp.state.store.redis_reader import RedisReader

RECORDS_PER_S = 2_000
"""Of all sidecars together."""
LEAST_PERIOD_S = 0.02
ENGINE_KEYS = 4_000
"""Own blocks that an engine holds."""
WARM_UP = 2
"""Records of each engine before anything is measured."""
STAMP_EVERY = 10
"""One record in so many says when its event was."""
TURN_S = 0.01
PROMPT_KEYS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    endpoints: int
    keys_per_s: int
    """Stored and removed, of all engines together."""
    seconds: float
    pool: PoolId
    """A log of its own for each run."""

    @property
    def period_s(self) -> float:
        """Between two records of one sidecar."""
        return max(LEAST_PERIOD_S, self.endpoints / RECORDS_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    load: Load
    records_per_s: float
    keys_per_s: float
    """As they arrived."""
    replica_cores: float
    """CPU of the picker's process, decisions included, in a second."""
    redis_cores: float
    replica_us: float
    """The same for each record: on a busy machine the only honest figures."""
    redis_us: float
    routable_p50_s: float
    """From an engine's event to when a decision counts it."""
    routable_p99_s: float
    decision_p50_ms: float
    """From when a match was wanted to its answer: what it waits for the loop, and its own time."""
    decision_p99_ms: float


async def bench(access: Access, load: Load, *, seed: int) -> Found:
    """Raises StoreError while Redis is away."""
    context = multiprocessing.get_context("spawn")
    said = context.Process(target=say, args=(access, load, seed), daemon=True)
    said.start()
    try:
        return await _Follower(access, load).measure()
    finally:
        said.terminate()
        said.join()


def shown(found: Found, *, as_json: bool) -> str:
    """As text or JSON."""
    if as_json:
        return json.dumps(asdict(found))
    return "\n".join(
        (
            f"{found.load.endpoints} endpoints: {found.records_per_s:.0f} records and "
            f"{found.keys_per_s:.0f} keys in a second",
            f"picker           {found.replica_cores:.2f} cores, {found.replica_us:.0f} us a record",
            f"Redis            {found.redis_cores:.2f} cores, {found.redis_us:.0f} us a record",
            f"event, routable  {1000 * found.routable_p50_s:.0f} ms, "
            f"p99 {1000 * found.routable_p99_s:.0f} ms",
            f"match wanted, had {found.decision_p50_ms:.1f} ms, p99 {found.decision_p99_ms:.1f} ms",
        )
    )


def names(load: Load) -> list[EndpointId]:
    return [EndpointId(load.pool, f"bench/{number}", 8000) for number in range(load.endpoints)]


@dataclass(slots=True)
class _Follower:
    """A picker as far as the log goes."""

    access: Access
    load: Load
    applied: int = 0
    keys: int = 0
    routable: list[float] = field(default_factory=list)
    decided: list[float] = field(default_factory=list)

    async def measure(self) -> Found:
        ids = names(self.load)
        pool = PoolState(
            self.load.pool,
            Endpoints(),
            PrefixIndex(4 * ENGINE_KEYS),
            PredictedIndex(1_000, 60.0),
            LoadBook(),
        )
        members = [Member(id=one, address=f"127.0.0.1:{at + 1}") for at, one in enumerate(ids)]
        pool.replace(members, time.monotonic())
        reader = RedisReader(self.access, self.load.pool, members=lambda: ids)
        async with asyncio.TaskGroup() as tg:
            tasks = [tg.create_task(self._follow(reader, pool))]
            tasks += [tg.create_task(self._decide(pool)), tg.create_task(self._tick(pool))]
            while self.applied < WARM_UP * self.load.endpoints:  # noqa: ASYNC110 - rises by itself
                await asyncio.sleep(0.1)
            self.applied = self.keys = 0
            self.routable.clear()
            self.decided.clear()
            redis, cpu, wall = await self._redis_s(), time.process_time(), time.perf_counter()
            await asyncio.sleep(self.load.seconds)
            wall = time.perf_counter() - wall
            cpu, redis = time.process_time() - cpu, await self._redis_s() - redis
            for task in tasks:
                task.cancel()
        await reader.close()
        return Found(
            load=self.load,
            records_per_s=self.applied / wall,
            keys_per_s=self.keys / wall,
            replica_cores=cpu / wall,
            redis_cores=redis / wall,
            replica_us=1e6 * cpu / max(1, self.applied),
            redis_us=1e6 * redis / max(1, self.applied),
            routable_p50_s=quantile(self.routable, 0.5),
            routable_p99_s=quantile(self.routable, 0.99),
            decision_p50_ms=1000 * quantile(self.decided, 0.5),
            decision_p99_ms=1000 * quantile(self.decided, 0.99),
        )

    async def _follow(self, reader: RedisReader, pool: PoolState) -> None:
        """As `Picker.follow_log`."""
        stream = reader.streams[0]
        async for records in stream.records():
            since = time.monotonic()
            for record in records:
                now = time.monotonic()
                if now - since > TURN_S:
                    await asyncio.sleep(0)
                    since = now = time.monotonic()
                pool.apply(record, now, behind_s=stream.behind_s)
                self._note(record)
            for endpoint in pool.lost(time.monotonic()):
                stream.reread([endpoint])

    def _note(self, record: bytes) -> None:
        self.applied += 1
        if self.applied % STAMP_EVERY:
            return
        said = parse(record)
        if said.part is None:
            self.keys += 0 if said.blocks is None else STAMP_EVERY * said.blocks.keys
            now = time.monotonic()
            self.routable += [now - float(first.decision_id) for first in said.first_tokens]

    async def _decide(self, pool: PoolState) -> None:
        chance = np.random.default_rng(1)
        while True:
            prompt = tuple(chance.integers(1, 2**63, size=PROMPT_KEYS).tolist())
            wanted = time.monotonic() + TURN_S
            await asyncio.sleep(TURN_S)
            pool.candidates(prompt, block_tokens=64, prompt_tokens=8192, now=time.monotonic())
            self.decided.append(time.monotonic() - wanted)

    async def _tick(self, pool: PoolState) -> None:
        while True:
            await asyncio.sleep(0.2)
            pool.tick(time.monotonic(), listening_since=0.0)

    async def _redis_s(self) -> float:
        (host, port), *_ = self.access.hosts
        client = AsyncRedis(host=host, port=port, password=self.access.password)
        try:
            info = await client.info("cpu")
        finally:
            await client.aclose()
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def say(access: Access, load: Load, seed: int) -> None:
    """Be all sidecars, until ended."""
    (host, port), *_ = access.hosts
    client = Redis(host=host, port=port, db=access.database, password=access.password)
    rng, chance = random.Random(seed), np.random.default_rng(seed)
    count = max(1, round(load.keys_per_s * load.period_s / load.endpoints / 2))
    engines = [_Engine(one, rng.random() * load.period_s, chance, count) for one in names(load)]
    digests = {one: client.script_load(one) for one in (scripts.CLAIM, scripts.SAVE)}
    append = client.script_load(scripts.APPEND)
    for engine in engines:
        client.evalsha(digests[scripts.CLAIM], 4, *engine.keys("streams", "log"), *engine.who, 1)
        whole = b"".join(map(frame, parts(engine.head(0), engine.present, {})))
        snapshot = layout.snapshot_key(engine.id)
        keys = [*engine.keys()[:2], snapshot]
        client.evalsha(digests[scripts.SAVE], 3, *keys, *engine.who, "0-0", whole, b"")
    began = time.monotonic()
    while True:
        now = time.monotonic()
        due = [engine for engine in engines if began + engine.due_s <= now]
        with client.pipeline(transaction=False) as pipe:
            for engine in due:
                engine.due_s += load.period_s
                happened = now - rng.random() * load.period_s
                record = engine.record(happened)
                limits = (layout.RETAIN_MS, layout.MAX_ENTRIES)
                pipe.evalsha(
                    append, 4, *engine.keys("streams", "log"), *engine.who, record, *limits
                )
            pipe.execute()
        time.sleep(0.002)


class _Engine:
    """What one sidecar says: blocks come, and the oldest go."""

    def __init__(
        self, ident: EndpointId, due_s: float, chance: np.random.Generator, count: int
    ) -> None:
        """Each record has `count` blocks that come, and as many that go."""
        self.id = ident
        self._chance, self._count = chance, count
        self.due_s = due_s
        self.life = Incarnation(ident, 1)
        self.who = (1, 1, 600_000, layout.TTL_MS, str(ident))
        self._seq = 0
        self._held = deque(self._some() for _ in range(max(1, ENGINE_KEYS // count)))

    def keys(self, *more: str) -> list[str]:
        pool = self.id.pool
        named = {"streams": layout.streams_key(pool), "log": layout.log_key(pool)}
        own = [layout.lease_key(self.id), layout.writers_key(pool)]
        return own + [named[one] for one in more]

    def head(self, seq: int) -> Record:
        status = EngineStatus(ready=True, events=True)
        return Record(incarnation=self.life, nonce=1, seq=seq, status=status)

    @property
    def present(self) -> PackedKeys:
        return PackedKeys(b"".join(self._held))

    def record(self, happened: float) -> bytes:
        self._seq += 1
        stored, removed = self._some(), self._held.popleft()
        self._held.append(stored)
        stamp = FirstToken(repr(happened), None)
        return encode(
            Record(
                incarnation=self.life,
                nonce=1,
                seq=self._seq,
                blocks=BlockChange(stored=PackedKeys(stored), removed=PackedKeys(removed)),
                status=EngineStatus(ready=True, events=True),
                first_tokens=(stamp,),
            )
        )

    def _some(self) -> bytes:
        return self._chance.integers(1, 2**63, size=self._count, dtype=np.uint64).tobytes()
