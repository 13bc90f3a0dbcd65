"""The log in a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from epp.errors import Fenced, StoreError
from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.store import Saved, Stream, layout
from epp.state.store.layout import lease_key, log_key, stream_of
from epp.state.store.place import read_access
from epp.state.store.redis_reader import READ_EVERY_S, RedisReader
from epp.state.store.redis_writer import RedisWriter
from tests.fakes.chains import until
from tests.fakes.redis_server import RedisServer, running
from tests.timing import scaled

POOL = PoolId("ns/p")
A = EndpointId(POOL, "default/a", 8000)
B = EndpointId(POOL, "default/b", 8000)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running() as server:
        yield server


@pytest.fixture(autouse=True)
def _emptied(server: RedisServer) -> None:
    server.command("FLUSHALL")


@asynccontextmanager
async def writing(
    server: RedisServer,
    start_ms: int = 1,
    nonce: int = 2**63 + 1,
    *,
    endpoint: EndpointId = A,
) -> AsyncIterator[RedisWriter]:
    writer = RedisWriter(read_access(server.url), POOL)
    try:
        await writer.claim(Incarnation(endpoint, start_ms), nonce)
        yield writer
    finally:
        await writer.close()


def reader_of(url: str, streams: int = 1, *members: EndpointId) -> RedisReader:
    known = members or (A,)
    return RedisReader(read_access(url), POOL, members=lambda: known, streams=streams)


async def take(reader: RedisReader, count: int) -> list[bytes]:
    (stream,) = reader.streams
    return await take_from(stream, count)


async def take_from(stream: Stream, count: int) -> list[bytes]:
    got: list[bytes] = []
    async with asyncio.timeout(scaled(5)):
        async for records in stream.records():
            got += records
            if len(got) >= count:
                break
    return got


async def test_a_snapshot_comes_first_then_what_followed_on_it(server: RedisServer) -> None:
    async with writing(server) as writer:
        await writer.append(b"before")
        await writer.save(Saved((b"part 1", b"part 2"), b"memory"))
        sent = [b"%d" % number for number in range(1200)]
        for record in sent:
            await writer.append(record)
        reader = reader_of(server.url)
        assert not reader.warm
        assert await take(reader, 1202) == [b"part 1", b"part 2", *sent]
        assert reader.connected
        assert reader.last_error == ""
        assert reader.counts["snapshots"] == 1
        await reader.close()


async def test_a_reader_waits_for_what_comes(server: RedisServer) -> None:
    reader = reader_of(server.url)
    async with writing(server) as writer, asyncio.TaskGroup() as tasks:
        taken = tasks.create_task(take(reader, 1))
        await until(lambda: reader.warm)
        await writer.append(b"late")
        assert await taken == [b"late"]
    await reader.close()


async def test_what_is_said_in_quick_succession_is_read_together(server: RedisServer) -> None:
    reader = reader_of(server.url)
    loop = asyncio.get_running_loop()
    sent = [b"%d" % number for number in range(200)]
    async with writing(server) as writer, asyncio.TaskGroup() as tasks:
        taken = tasks.create_task(take(reader, len(sent)))
        await until(lambda: reader.warm)
        began, before = loop.time(), reads(server)
        for record in sent:
            await writer.append(record)
        assert await taken == sent
        assert reads(server) - before <= (loop.time() - began) / READ_EVERY_S + 2
    await reader.close()


def reads(server: RedisServer) -> int:
    """How often the log was read, since Redis began."""
    told = server.command("INFO", "commandstats").partition("cmdstat_xread:calls=")[2]
    return int(told.partition(",")[0] or 0)


async def test_one_endpoint_is_read_again_and_only_it(server: RedisServer) -> None:
    async with writing(server) as writer, writing(server, endpoint=B) as other:
        await writer.save(Saved((b"a0",), b""))
        await other.save(Saved((b"b0",), b""))
        for number in range(3):
            await writer.append(b"a%d" % (number + 1))
            await other.append(b"b%d" % (number + 1))
        reader = reader_of(server.url, 1, A, B)
        first = await take(reader, 8)
        assert first[:2] == [b"a0", b"b0"]
        assert sorted(first[2:]) == [b"a1", b"a2", b"a3", b"b1", b"b2", b"b3"]
        reader.stream_of(B).reread([B])
        assert await take(reader, 4) == [b"b0", b"b1", b"b2", b"b3"]
        await reader.close()


async def test_a_hole_behind_the_cursor_is_found_when_the_line_comes_back(
    server: RedisServer,
) -> None:
    async with writing(server) as writer, asyncio.TaskGroup() as tasks:
        await writer.append(b"first")
        reader = reader_of(server.url)
        reading = tasks.create_task(take(reader, 99))
        await until(lambda: reader.warm)
        server.command("CLIENT", "KILL", "TYPE", "normal")
        server.command("XTRIM", log_key(POOL), "MAXLEN", "0")
        server.command("XADD", log_key(POOL), "*", "e", "x", "r", "later")
        await until(lambda: reader.counts["holes"] == 1)
        reading.cancel()
    assert (reader.counts["reconnects"], reader.counts["restarts"]) == (1, 0)
    await reader.close()


async def test_several_streams_share_the_endpoints(server: RedisServer) -> None:
    many = [EndpointId(POOL, f"default/{number}", 8000) for number in range(20)]
    reader = reader_of(server.url, 4, *many)
    assert {reader.stream_of(endpoint) for endpoint in many} == set(reader.streams)
    for endpoint in many:
        writer = RedisWriter(read_access(server.url), POOL, streams=4)
        await writer.claim(Incarnation(endpoint, 1), 1)
        await writer.save(Saved((str(endpoint).encode(),), b""))
        assert writer.writers >= 4
        await writer.close()
    got = []
    for stream in reader.streams:
        mine = sum(reader.stream_of(endpoint) is stream for endpoint in many)
        got += await take_from(stream, mine)
    assert sorted(got) == sorted(str(endpoint).encode() for endpoint in many)
    assert reader.listening_since is not None
    await reader.close()


async def test_who_was_told_another_number_of_streams_is_refused(server: RedisServer) -> None:
    async with writing(server):
        other = RedisWriter(read_access(server.url), POOL, streams=2)
        named = next(
            endpoint
            for number in range(99)
            if stream_of(endpoint := EndpointId(POOL, f"default/{number}", 1), 2) == 0
        )
        with pytest.raises(StoreError, match="has 1 streams, but we were told 2"):
            await other.claim(Incarnation(named, 1), 1)
        await other.close()
        reader = reader_of(server.url, 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(aiter(reader.streams[0].records()))
        assert "must agree" in reader.last_error
        await reader.close()


async def test_a_memory_is_recalled_by_the_next_writer_of_the_same_life(
    server: RedisServer,
) -> None:
    async with writing(server) as writer:
        await writer.save(Saved((b"part",), b"memory \x00\xff"))
    successor = RedisWriter(read_access(server.url), POOL)
    assert await successor.recall(Incarnation(A, 1)) == b"memory \x00\xff"
    assert await successor.recall(Incarnation(A, 2)) is None
    assert await successor.recall(Incarnation(B, 1)) is None
    await successor.close()


async def test_a_fenced_writer_cannot_save(server: RedisServer) -> None:
    async with writing(server, nonce=1) as older, writing(server, nonce=2) as newer:
        await newer.save(Saved((b"new",), b"new"))
        with pytest.raises(Fenced):
            await older.save(Saved((b"old",), b"old"))
        with pytest.raises(StoreError, match="claim first"):
            await older.save(Saved((b"old",), b"old"))
        assert await newer.recall(Incarnation(A, 1)) == b"new"


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
        late = RedisWriter(read_access(server.url), POOL)
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
        await writer.save(Saved((b"part",), b"memory"))
    keys = [line for line in server.command("KEYS", "*").splitlines() if line.startswith("epp:")]
    assert len(keys) == 5
    for key in keys:
        assert int(server.command("PTTL", key)[1:]) > 1_000


def length(server: RedisServer) -> int:
    return int(server.command("XLEN", log_key(POOL))[1:])


async def test_the_log_is_trimmed_by_number(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writing(server) as writer:
        for _ in range(300):
            await writer.append(b"x")
        assert length(server) == 300
        monkeypatch.setattr(layout, "MAX_ENTRIES", 100)
        await writer.append(b"x")
        assert 100 <= length(server) <= 200


async def test_the_log_is_trimmed_by_age_but_not_past_a_live_writers_snapshot(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "RETAIN_MS", 1)
    async with writing(server) as writer, writing(server, endpoint=B) as other:
        await writer.append(b"x")
        await writer.save(Saved((b"part",), b""))
        await asyncio.sleep(0.01)
        for _ in range(300):
            await other.append(b"x")
        await other.save(Saved((b"part",), b""))
        assert length(server) == 301
        await asyncio.sleep(0.01)
        await writer.append(b"x")
        await writer.save(Saved((b"part",), b""))
        await other.append(b"x")
        assert length(server) <= 201


async def test_a_dead_writers_snapshot_holds_nothing_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "RETAIN_MS", 1)
    async with writing(server) as dead, writing(server, endpoint=B) as writer:
        await dead.append(b"x")
        await dead.save(Saved((b"part",), b""))
        server.command("DEL", lease_key(A))
        for _ in range(300):
            await writer.append(b"x")
        await writer.save(Saved((b"part",), b""))
        await asyncio.sleep(0.01)
        await writer.append(b"x")
        assert length(server) <= 201
        assert writer.writers == 1


async def test_an_absent_redis_is_a_store_error_without_secrets() -> None:
    for url in ("redis://:hunter2@127.0.0.1:1/0", "redis://:hunter2@256.0.0.1:1/0"):
        writer = RedisWriter(read_access(url), POOL)
        with pytest.raises(StoreError) as caught:
            await writer.claim(Incarnation(A, 1), 1)
        assert "hunter2" not in str(caught.value)
        await writer.close()


async def test_the_back_off_of_a_reader_is_bounded_and_it_says_what_is_wrong() -> None:
    reader = reader_of("redis://:hunter2@127.0.0.1:1/0")
    with capture_logs() as said, pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await anext(aiter(reader.streams[0].records()))
    assert not reader.connected
    assert [line["event"] for line in said] == ["the log is away"]
    assert said[0]["reason"] == reader.last_error
    assert 2 <= reader.counts["errors"] <= 8
    assert "127.0.0.1:1" in reader.last_error
    assert "hunter2" not in reader.last_error
    await reader.close()
