"""Named leases in a real Redis."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from epp.errors import StoreError
from epp.framework import PoolId
from epp.state.leases import LEASE_S, Elector
from epp.state.store import layout
from epp.state.store.leases import RedisRegister
from epp.state.store.place import read_access
from tests.fakes.redis_server import RedisServer, running
from tests.fakes.waiting import until

POOL = PoolId("ns/pool")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running() as started:
        yield started


def register(server: RedisServer, holder: str, pool: PoolId = POOL) -> RedisRegister:
    return RedisRegister(read_access(server.url), pool, holder, call_s=0.5)


async def test_one_holds_and_only_it_renews_or_gives_back(server: RedisServer) -> None:
    one, two = register(server, "one"), register(server, "two")
    assert await one.take("a", 10)
    assert await one.take("a", 10)
    assert not await two.take("a", 10)
    await two.release("a")
    assert not await two.take("a", 10)
    await one.release("a")
    assert await two.take("a", 10)
    await one.close()
    await two.close()


async def test_leases_and_pools_are_apart(server: RedisServer) -> None:
    one, two = register(server, "one"), register(server, "two")
    other = register(server, "three", PoolId("ns/other"))
    assert await one.take("a", 10)
    assert await two.take("b", 10)
    assert await other.take("a", 10)
    for each in (one, two, other):
        await each.close()


async def test_a_lease_that_is_not_renewed_ends_and_leaves_nothing(server: RedisServer) -> None:
    one, two = register(server, "one"), register(server, "two")
    assert await one.take("a", 0.2)
    async with asyncio.timeout(20):
        while not await two.take("a", 0.2):  # noqa: ASYNC110 - Redis' own clock
            await asyncio.sleep(0.02)
    await until(lambda: server.command("DBSIZE") == ":0\r\n")
    assert await one.take("a", 0.2)
    await one.close()
    await two.close()


async def test_an_emptied_or_restarted_redis_is_asked_again(server: RedisServer) -> None:
    one = register(server, "one")
    assert await one.take("a", 10)
    server.command("FLUSHALL")
    assert await one.take("a", 10)
    assert server.command("GET", layout.elected_key(POOL, "a")) == "$3\r\none\r\n"
    server.restart()
    with suppress(StoreError):  # the line of the server before
        await one.take("a", 10)
    assert await one.take("a", 10)
    await one.close()


async def test_while_redis_is_frozen_nobody_holds_and_calls_end_in_time(
    server: RedisServer,
) -> None:
    made = [
        Elector(register(server, name), "a", clock=time.monotonic, rng=Random(1), lease_s=1.0)
        for name in ("one", "two")
    ]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one.run()) for one in made]
        await until(lambda: any(one.held for one in made), within_s=LEASE_S)
        server.freeze()
        await until(lambda: not any(one.held for one in made), within_s=LEASE_S)
        await until(lambda: all(one.counts["failed"] for one in made), within_s=LEASE_S)
        server.thaw()
        await until(lambda: [one.held for one in made].count(True) == 1, within_s=LEASE_S)
        for task in running:
            task.cancel()
    assert not any(one.held for one in made)
