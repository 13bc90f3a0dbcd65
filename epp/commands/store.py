"""`epp bench store`: what the log in Redis weighs, and how soon a fresh replica knows all of it.

Engines are made up: each has stored one of a few long prompts of random tokens. Their writers put
snapshots into the Redis that is named, under a pool of their own; then a picker's reader starts
cold.
"""

import asyncio
import json
import random
import time
from array import array
from dataclasses import asdict, dataclass

from redis.asyncio import Redis

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.endpoints import Endpoints, Member
from epp.state.engine_blocks import EngineBlocks
from epp.state.events import BlockStored
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix import PredictedIndex, PrefixIndex
from epp.state.records import EngineStatus, Record
from epp.state.snapshots import parts
from epp.state.store import Saved
from epp.state.store.layout import snapshot_key
from epp.state.store.link import CALL_S, Link
from epp.state.store.place import Access, Place
from epp.state.store.redis_reader import RedisReader
from epp.state.store.redis_writer import RedisWriter

POOL = PoolId("bench/store")
ENGINE_BLOCK_TOKENS = 16
PROMPTS = 4
"""Engines with another prompt each; the rest hold the same as one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was measured. Seconds are CPU of this process unless they say wall."""

    endpoints: int
    pairs: int
    """Of an own block and an endpoint that holds it."""
    engine_blocks: int
    bytes_per_engine_block: float
    """In Redis, of all snapshots, keys included."""
    warm_cpu_s: float
    """Of a fresh replica until it knows all of it."""
    warm_wall_s: float


async def bench(access: Access, *, endpoints: int, own_blocks: int, seed: int) -> Found:
    """Every one of `endpoints` holds `own_blocks`. Raises StoreError while Redis is away."""
    rng = random.Random(seed)
    ids = [EndpointId(POOL, f"bench/{number}", 8000) for number in range(endpoints)]
    engine_blocks = own_blocks * 64 // ENGINE_BLOCK_TOKENS
    engines = [_engine(rng, engine_blocks) for _ in range(min(PROMPTS, endpoints))]
    for number, endpoint in enumerate(ids):
        await _say(access, endpoint, engines[number % len(engines)])
    weight = await _weight(access, ids)
    cpu, wall = await _warm(access, ids, own_blocks)
    return Found(
        endpoints=endpoints,
        pairs=endpoints * own_blocks,
        engine_blocks=endpoints * engine_blocks,
        bytes_per_engine_block=weight / (endpoints * engine_blocks),
        warm_cpu_s=cpu,
        warm_wall_s=wall,
    )


def shown(found: Found, *, as_json: bool) -> str:
    """As text or JSON."""
    if as_json:
        return json.dumps(asdict(found))
    return "\n".join(
        (
            f"{found.endpoints} endpoints, {found.pairs} pairs of block and endpoint",
            f"snapshots in Redis        {found.bytes_per_engine_block:.1f} B per engine block",
            f"fresh replica is warm in  {found.warm_cpu_s:.2f} s CPU,"
            f" {found.warm_wall_s:.2f} s wall",
        )
    )


def _engine(rng: random.Random, count: int) -> EngineBlocks:
    """An engine that holds one prompt of so many blocks."""
    blocks = EngineBlocks("model")
    tokens = array("I", [rng.randrange(100_000) for _ in range(count * ENGINE_BLOCK_TOKENS)])
    stored = BlockStored(
        block_hashes=tuple(rng.getrandbits(63) for _ in range(count)),
        parent_block_hash=None,
        tokens=tokens.tobytes(),
        block_size=ENGINE_BLOCK_TOKENS,
    )
    blocks.apply([stored])
    return blocks


async def _say(access: Access, endpoint: EndpointId, engine: EngineBlocks) -> None:
    """What a sidecar says of its engine: a snapshot, and a first record."""
    writer = RedisWriter(access, POOL)
    life = Incarnation(endpoint, 1)
    head = Record(incarnation=life, nonce=1, seq=0, status=EngineStatus(ready=True, events=True))
    await writer.claim(life, 1)
    cut = parts(head, engine.present(), engine.tiers_present())
    await writer.save(Saved(cut, engine.freeze(1).entries().pack()))
    await writer.close()


async def _weight(access: Access, ids: list[EndpointId]) -> int:
    async def weigh(redis: Redis) -> int:
        used = [await redis.memory_usage(snapshot_key(one), samples=0) for one in ids]
        return sum(int(one or 0) for one in used)

    link = Link(Place(access, snapshot_key(ids[0]), CALL_S))
    try:
        return await link.call(weigh, CALL_S * len(ids))
    finally:
        link.drop()


async def _warm(access: Access, ids: list[EndpointId], own_blocks: int) -> tuple[float, float]:
    index = PrefixIndex(own_blocks + 1)
    pool = PoolState(POOL, Endpoints(), index, PredictedIndex(1_000, 60.0), LoadBook())
    members = [Member(id=one, address=f"127.0.0.1:{at + 1}") for at, one in enumerate(ids)]
    pool.replace(members, 0.0)
    reader = RedisReader(access, POOL, members=lambda: ids)
    cpu, wall = time.process_time(), time.perf_counter()
    known = 0
    async for records in reader.streams[0].records():
        for record in records:
            pool.apply(record, 0.0)
            await asyncio.sleep(0)
        known = sum(index.blocks(Incarnation(one, 1)) for one in ids)
        if known == len(ids) * own_blocks:
            break
    spent = time.process_time() - cpu, time.perf_counter() - wall
    await reader.close()
    return spent
