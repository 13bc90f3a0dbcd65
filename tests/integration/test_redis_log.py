"""The log in a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from epp.errors import Fenced, StoreError
from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.store import redis as log
from epp.state.store.redis import RedisReader, RedisWriter, lease_key, log_key
from tests.fakes.redis_server import RedisServer, running
from tests.timing import scaled

POOL = PoolId("ns/p")
A = EndpointId(POOL, "default/a", 8000)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running() as server:
        yield server


@pytest.fixture(autouse=True)
def _emptied(server: RedisServer) -> None:
    server.command("FLUSHALL")


@asynccontextmanager
async def writing(
    server: RedisServer, start_ms: int = 1, nonce: int = 2**63 + 1
) -> AsyncIterator[RedisWriter]:
    writer = RedisWriter(server.url, POOL)
    try:
        await writer.claim(Incarnation(A, start_ms), nonce)
        yield writer
    finally:
        await writer.close()


async def take(reader: RedisReader, count: int) -> list[bytes]:
    got: list[bytes] = []
    async with asyncio.timeout(scaled(5)):
        async for batch in reader.records():
            got += batch.records
            if len(got) >= count:
                break
    return got


async def test_records_come_out_as_they_went_in_from_the_oldest_on(server: RedisServer) -> None:
    sent = [bytes([number]) * 3 for number in range(50)]
    async with writing(server) as writer:
        for record in sent:
            await writer.append(record)
    reader = RedisReader(server.url, POOL)
    assert await take(reader, 50) == sent
    assert reader.connected
    assert reader.last_error == ""
    await reader.close()


async def test_a_reader_waits_for_what_comes(server: RedisServer) -> None:
    reader = RedisReader(server.url, POOL)
    async with writing(server) as writer, asyncio.TaskGroup() as tasks:
        taken = tasks.create_task(take(reader, 1))
        await asyncio.sleep(0.1)
        await writer.append(b"late")
        assert await taken == [b"late"]
    await reader.close()


async def test_another_writer_fences_the_older(server: RedisServer) -> None:
    async with writing(server, nonce=1) as older, writing(server, nonce=2) as newer:
        with pytest.raises(Fenced):
            await older.append(b"x")
        with pytest.raises(StoreError, match="claim first"):
            await older.append(b"x")
        await newer.append(b"y")
    assert ":1" in server.command("XLEN", log_key(POOL))


async def test_an_earlier_life_cannot_claim(server: RedisServer) -> None:
    async with writing(server, start_ms=20):
        late = RedisWriter(server.url, POOL)
        with pytest.raises(Fenced):
            await late.claim(Incarnation(A, 19), 9)
        await late.claim(Incarnation(A, 21), 9)
        await late.close()


async def test_a_lost_lease_asks_for_a_new_claim(server: RedisServer) -> None:
    async with writing(server) as writer:
        server.command("DEL", lease_key(A))
        with pytest.raises(StoreError, match="lease is gone"):
            await writer.append(b"x")
        await writer.claim(Incarnation(A, 1), 5)
        await writer.append(b"x")


async def test_every_key_has_a_time_to_live(server: RedisServer) -> None:
    async with writing(server) as writer:
        await writer.append(b"x")
    for key in (log_key(POOL), lease_key(A)):
        assert int(server.command("PTTL", key)[1:]) > 1_000
    assert server.command("DBSIZE") == ":2\r\n"


async def test_the_log_is_trimmed_by_age_and_by_number(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def length() -> int:
        return int(server.command("XLEN", log_key(POOL))[1:])

    async with writing(server) as writer:
        for _ in range(300):
            await writer.append(b"x")
        assert length() == 300
        monkeypatch.setattr(log, "MAX_ENTRIES", 100)
        await writer.append(b"x")
        assert 100 <= length() <= 200
        monkeypatch.setattr(log, "RETAIN_MS", 1)
        await asyncio.sleep(0.01)
        await writer.append(b"x")
        assert length() <= 101


async def test_an_absent_redis_is_a_store_error_without_secrets() -> None:
    for url in ("redis://:hunter2@127.0.0.1:1/0", "redis://:hunter2@256.0.0.1:1/0"):
        writer = RedisWriter(url, POOL)
        with pytest.raises(StoreError) as caught:
            await writer.claim(Incarnation(A, 1), 1)
        assert "hunter2" not in str(caught.value)
        await writer.close()


async def test_the_back_off_of_a_reader_is_bounded_and_it_says_what_is_wrong() -> None:
    reader = RedisReader("redis://:hunter2@127.0.0.1:1/0", POOL)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await anext(aiter(reader.records()))
    assert not reader.connected
    assert 2 <= reader.counts["errors"] <= 8
    assert "127.0.0.1:1" in reader.last_error
    assert "hunter2" not in reader.last_error
    await reader.close()
