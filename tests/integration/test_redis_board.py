"""What replicas have reserved, told through a real Redis."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from epp.errors import StoreError
from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.store import board as module
from epp.state.store.board import RedisBoard
from epp.state.store.place import read_access
from epp.state.sums import LEASE_S, EndpointSum, ReplicaSums
from tests.fakes.redis_server import RedisServer, running
from tests.timing import scaled

POOL = PoolId("ns/pool")
LIFE = Incarnation(EndpointId(POOL, "a", 1), 7)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running() as started:
        yield started


def board(server: RedisServer, name: str, pool: PoolId = POOL) -> RedisBoard:
    return RedisBoard(read_access(server.url), pool, name, call_s=0.5)


def sums(name: str, requests: int = 1) -> ReplicaSums:
    return ReplicaSums(name, (EndpointSum(incarnation=LIFE, requests=requests),))


async def test_replicas_read_the_others_last_word_and_never_their_own(server: RedisServer) -> None:
    one, two, three = (board(server, name) for name in ("one", "two", "three"))
    assert await one.others() == []
    await one.publish(sums("one"))
    await two.publish(sums("two", 1))
    await two.publish(sums("two", 5))
    assert await one.others() == [sums("two", 5)]
    assert await two.others() == [sums("one")]
    assert len(await three.others()) == 2
    await two.close()
    assert await one.others() == []
    await one.close()
    await three.close()


async def test_pools_do_not_hear_each_other(server: RedisServer) -> None:
    one, other = board(server, "one"), board(server, "other", PoolId("ns/other"))
    await one.publish(sums("one"))
    assert await other.others() == []
    await one.close()
    await other.close()


async def test_who_says_no_more_is_forgotten_after_its_lease_and_leaves_nothing(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEASE_MS", 300)
    one, two = board(server, "one"), board(server, "two")
    await two.publish(sums("two"))
    async with asyncio.timeout(scaled(LEASE_S)):
        while await one.others():  # noqa: ASYNC110 - Redis' own clock
            await asyncio.sleep(0.02)
    await one.publish(sums("one"))
    assert server.command("HLEN", f"epp:{{{POOL}:0}}:sums") == ":1\r\n"
    async with asyncio.timeout(scaled(5)):
        while server.command("DBSIZE") != ":0\r\n":  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.05)
    await one.close()
    await two.close()


async def test_a_redis_that_was_emptied_or_restarted_is_told_again(server: RedisServer) -> None:
    one, two = board(server, "one"), board(server, "two")
    await two.publish(sums("two"))
    server.command("FLUSHALL")
    server.command("SCRIPT", "FLUSH")
    assert await one.others() == []
    await two.publish(sums("two"))
    assert await one.others() == [sums("two")]
    server.restart()
    with pytest.raises(StoreError):
        await two.publish(sums("two"))
    await two.publish(sums("two"))
    with suppress(StoreError):  # by its old connection
        await one.others()
    assert await one.others() == [sums("two")]
    await one.close()
    await two.close()


async def test_a_redis_that_hangs_ends_a_call_in_time(server: RedisServer) -> None:
    one = board(server, "one")
    await one.publish(sums("one"))
    server.freeze()
    async with asyncio.timeout(scaled(5)):
        with pytest.raises(StoreError, match="TimeoutError"):
            await one.others()
    server.thaw()
    await one.publish(sums("one"))
    await one.close()


async def test_what_cannot_be_read_is_counted_and_hides_nobody(server: RedisServer) -> None:
    one, two = board(server, "one"), board(server, "two")
    await two.publish(sums("two"))
    server.command("HSET", f"epp:{{{POOL}:0}}:sums", "bad", b"\xff\xff")
    server.command("ZADD", f"epp:{{{POOL}:0}}:sums:until", "9999999999999", "bad")
    assert await one.others() == [sums("two")]
    assert one.counts["odd"] == 1
    await one.close()
    await two.close()


async def test_a_bounded_number_of_replicas_is_read(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_REPLICAS", 3)
    boards = [board(server, f"r{number}") for number in range(6)]
    for number, one in enumerate(boards):
        await one.publish(sums(f"r{number}"))
        await asyncio.sleep(0.002)
    told = await boards[0].others()
    assert [one.replica for one in told] == ["r3", "r4", "r5"]
    for one in boards:
        await one.close()
