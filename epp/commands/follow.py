"""`epp bench follow`: what it costs a picker to follow a whole pool, and how soon it knows.

Another process says to the Redis that is named what the sidecars of so many engines would say, by
their own scripts, as often as they may (`RECORDS_PER_S`): each has said a snapshot, and says one
again now and then. Here a picker's reader follows, while decisions are asked for. An event happens
at any moment between two flushes of its sidecar.
"""

import asyncio
import json
import multiprocessing
import random
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Event

import numpy as np
from redis import Redis

from epp.framework import EndpointId, Incarnation, PoolId
from epp.sim.benches.measure import quantile
from epp.state.endpoints import Endpoints, Member
from epp.state.hearing import follow
from epp.state.keys import PackedKeys
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix import PredictedIndex, PrefixIndex
from epp.state.records import BlockChange, EngineStatus, FirstToken, Record, encode, parse
from epp.state.snapshots import parts
from epp.state.store import layout, scripts
from epp.state.store.frames import frame
from epp.state.store.link import CALL_S, Link
from epp.state.store.place import Access, Place
from epp.state.store.redis_reader import RedisReader

RECORDS_PER_S = 2_000
"""Of all sidecars together."""
LEAST_PERIOD_S = 0.02
ENGINE_KEYS = 4_000
"""Own blocks that an engine holds."""
MEMORY_BYTES = 46 * ENGINE_KEYS
"""What a sidecar keeps for the one after it: 11.5 for each of four blocks of the engine."""
SNAPSHOT_S = (15.0, 20.0)
"""Between two snapshots of one sidecar."""
WARM_UP = 3
"""Records of each engine, snapshots among them, before anything is measured."""
STAMP_EVERY = 10
"""One record in so many says when its event was."""
STATED_S = 60.0
"""Within which all have said a snapshot."""
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


@dataclass(frozen=True, slots=True)
class Cue:
    """Between those who say and the one who hears."""

    stated: Event
    """All have said a snapshot."""
    go_on: Event
    """It was read: records may come."""


async def bench(access: Access, load: Load, *, seed: int) -> Found:
    """Raises StoreError while Redis is away."""
    context = multiprocessing.get_context("spawn")
    cue = Cue(context.Event(), context.Event())
    said = context.Process(target=say, args=(access, load, seed, cue), daemon=True)
    said.start()
    try:
        await asyncio.to_thread(cue.stated.wait, STATED_S)
        return await _measured(access, load, cue)
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


class _Pool(PoolState):
    """A picker's, which notes what it is told."""

    def __init__(self, load: Load) -> None:
        super().__init__(
            load.pool,
            Endpoints(),
            PrefixIndex(4 * ENGINE_KEYS),
            PredictedIndex(1_000, 60.0),
            LoadBook(),
        )
        members = [
            Member(id=one, address=f"127.0.0.1:{at}", has_sidecar=True)
            for at, one in enumerate(names(load), 1)
        ]
        self.replace(members, time.monotonic())
        self.applied = self.keys = 0
        self.routable: list[float] = []

    def apply_all(self, records: Iterable[bytes], now: float, *, behind_s: float = 0.0) -> None:
        told = tuple(records)
        super().apply_all(told, now, behind_s=behind_s)
        for record in told:
            self.applied += 1
            if self.applied % STAMP_EVERY == 0:
                self._note(parse(record))

    def _note(self, said: Record) -> None:
        if said.part is None:
            self.keys += 0 if said.blocks is None else STAMP_EVERY * said.blocks.keys
            now = time.monotonic()
            self.routable += [now - float(first.decision_id) for first in said.first_tokens]

    def begin(self) -> None:
        """What was noted so far does not count."""
        self.applied = self.keys = 0
        self.routable.clear()


async def _measured(access: Access, load: Load, cue: Cue) -> Found:
    pool, ids = _Pool(load), names(load)
    reader = RedisReader(access, load.pool, members=lambda: ids)
    decided: list[float] = []
    async with asyncio.TaskGroup() as tg:
        following = follow(pool, reader, reader.streams[0], clock=time.monotonic)
        tasks = [tg.create_task(one) for one in (following, _decide(pool, decided), _tick(pool))]
        while not reader.warm:  # noqa: ASYNC110 - neither has anything to wait for
            await asyncio.sleep(0.1)
        cue.go_on.set()
        while pool.applied < WARM_UP * load.endpoints:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.1)
        pool.begin()
        decided.clear()
        redis, cpu, wall = await _redis_s(access, load), time.process_time(), time.perf_counter()
        await asyncio.sleep(load.seconds)
        wall = time.perf_counter() - wall
        cpu, redis = time.process_time() - cpu, await _redis_s(access, load) - redis
        for task in tasks:
            task.cancel()
    await reader.close()
    return Found(
        load=load,
        records_per_s=pool.applied / wall,
        keys_per_s=pool.keys / wall,
        replica_cores=cpu / wall,
        redis_cores=redis / wall,
        replica_us=1e6 * cpu / max(1, pool.applied),
        redis_us=1e6 * redis / max(1, pool.applied),
        routable_p50_s=quantile(pool.routable, 0.5),
        routable_p99_s=quantile(pool.routable, 0.99),
        decision_p50_ms=1000 * quantile(decided, 0.5),
        decision_p99_ms=1000 * quantile(decided, 0.99),
    )


async def _decide(pool: PoolState, decided: list[float]) -> None:
    chance = np.random.default_rng(1)
    while True:
        prompt = tuple(chance.integers(1, 2**63, size=PROMPT_KEYS).tolist())
        wanted = time.monotonic() + TURN_S
        await asyncio.sleep(TURN_S)
        pool.candidates(prompt, block_tokens=64, prompt_tokens=8192, now=time.monotonic())
        decided.append(time.monotonic() - wanted)


async def _tick(pool: PoolState) -> None:
    while True:
        await asyncio.sleep(0.1)
        pool.tick(time.monotonic(), listening_since=0.0)


async def _redis_s(access: Access, load: Load) -> float:
    """CPU that Redis has used so far."""
    link = Link(Place(access, layout.log_key(load.pool), CALL_S))
    try:
        info = await link.call(lambda redis: redis.info("cpu"), CALL_S)
    finally:
        link.drop()
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def say(access: Access, load: Load, seed: int, cue: Cue) -> None:
    """Be all sidecars, until ended."""
    (host, port), *_ = access.hosts
    client = Redis(host=host, port=port, db=access.database, password=access.password)
    rng, chance = random.Random(seed), np.random.default_rng(seed)
    count = max(1, round(load.keys_per_s * load.period_s / load.endpoints / 2))
    engines = [_Engine(one, rng.random() * load.period_s, chance, count) for one in names(load)]
    claim, save, append = (
        client.script_load(one) for one in (scripts.CLAIM, scripts.SAVE, scripts.APPEND)
    )
    for engine in engines:
        client.evalsha(claim, 4, *engine.keys("streams", "log"), *engine.who, 1)
        client.evalsha(save, 3, *engine.snapshot(b"0-0"))
        engine.snapshot_s = rng.random() * SNAPSHOT_S[1]
    cue.stated.set()
    cue.go_on.wait()
    began = time.monotonic()
    while True:
        now = time.monotonic()
        due = [engine for engine in engines if began + engine.due_s <= now]
        with client.pipeline(transaction=False) as pipe:
            for engine in due:
                engine.due_s += load.period_s
                record = engine.record(now - rng.random() * load.period_s)
                limits = (layout.RETAIN_MS, layout.MAX_ENTRIES)
                pipe.evalsha(
                    append, 4, *engine.keys("streams", "log"), *engine.who, record, *limits
                )
            answers = pipe.execute()
            for engine, answer in zip(due, answers, strict=True):
                if began + engine.snapshot_s <= now:
                    engine.snapshot_s = now - began + rng.uniform(*SNAPSHOT_S)
                    pipe.evalsha(save, 3, *engine.snapshot(answer[1]))
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
        self.snapshot_s = 0.0
        """When its next snapshot is due."""
        self._seq = 0
        self._held = deque(self._some() for _ in range(max(1, ENGINE_KEYS // count)))

    def keys(self, *more: str) -> list[str]:
        pool = self.id.pool
        named = {"streams": layout.streams_key(pool), "log": layout.log_key(pool)}
        own = [layout.lease_key(self.id), layout.writers_key(pool)]
        return own + [named[one] for one in more]

    def snapshot(self, cursor: bytes) -> tuple[str | bytes | int, ...]:
        """Keys and arguments of `SAVE`."""
        status = EngineStatus(ready=True, events=True)
        head = Record(incarnation=self.life, nonce=1, seq=self._seq, status=status)
        held = PackedKeys(b"".join(self._held))
        whole = b"".join(map(frame, parts(head, held, {})))
        place = layout.snapshot_key(self.id)
        return *self.keys(), place, *self.who, cursor, whole, bytes(MEMORY_BYTES)

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
