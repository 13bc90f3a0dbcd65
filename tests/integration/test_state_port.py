"""The picker's own state port over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from epp._pb import state_pb2 as pb
from epp.errors import ConfigError, Fenced, StoreError
from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.store import Saved
from epp.state.store import memory as port
from epp.state.store.abreast import PROMPT_S
from epp.state.store.frames import MAX_FRAME, frame
from epp.state.store.memory import ServerLimits, StateServer
from epp.state.store.open import open_writer
from epp.state.store.port_writer import StateWriter
from epp.state.store.redis_writer import RedisWriter
from tests.timing import scaled

POOL = PoolId("p")
A = EndpointId(POOL, "a", 1)
B = EndpointId(POOL, "b", 1)


@asynccontextmanager
async def serving(
    token: str | None = None,
    is_member: Callable[[EndpointId], bool] = lambda _: True,
    **limits: float,
) -> AsyncIterator[StateServer]:
    server = StateServer(
        "127.0.0.1", 0, token=token, is_member=is_member, limits=ServerLimits(**limits)
    )
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def writer_to(server: StateServer, token: str | None = None) -> StateWriter:
    return StateWriter("127.0.0.1", server.port, token=token)


async def take(server: StateServer, count: int) -> list[bytes]:
    got: list[bytes] = []
    async with asyncio.timeout(scaled(5)):
        async for records in server.records():
            got += records
            if len(got) >= count:
                break
    return got


async def append_for_ever(writer: StateWriter, record: bytes = b"x", pause_s: float = 0.01) -> None:
    async with asyncio.timeout(scaled(5)):
        while True:
            await writer.append(record)
            await asyncio.sleep(pause_s)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(scaled(5)):
        while not condition():  # noqa: ASYNC110 - the condition belongs to somebody else
            await asyncio.sleep(0.01)


async def test_records_arrive_in_order() -> None:
    async with serving() as server:
        assert server.connected
        writer = writer_to(server)
        await writer.claim(Incarnation(A, 1), 7)
        sent = [str(number).encode() for number in range(500)]
        for record in sent:
            await writer.append(record)
        assert await take(server, 500) == sent
        assert server.writers == 1
        await writer.close()
        await until(lambda: server.writers == 0)
    assert not server.connected


async def test_what_waited_while_nobody_read_is_not_taken_for_news() -> None:
    async with serving() as server, asyncio.TaskGroup() as tasks:
        writer = writer_to(server)
        await writer.claim(Incarnation(A, 1), 7)
        saying = tasks.create_task(append_for_ever(writer))
        reading = server.records()
        await anext(reading)
        await asyncio.sleep(PROMPT_S + 0.2)
        await anext(reading)
        assert server.behind_s > PROMPT_S
        saying.cancel()
        await reading.aclose()
        await writer.close()


async def test_a_snapshot_and_a_memory_reach_the_picker_and_the_next_writer() -> None:
    memory = bytes(range(256)) * 5_000
    async with serving() as server:
        writer = writer_to(server)
        assert await writer.recall(Incarnation(A, 1)) is None
        await writer.claim(Incarnation(A, 1), 7)
        await writer.save(Saved((b"part 1", b"part 2"), memory))
        await writer.append(b"record")
        assert await take(server, 3) == [b"part 1", b"part 2", b"record"]
        await writer.close()
        successor = writer_to(server)
        assert await successor.recall(Incarnation(A, 1)) == memory
        assert await successor.recall(Incarnation(A, 2)) is None
        assert await successor.recall(Incarnation(B, 1)) is None
        assert server.held == {"writers": 0, "memory-bytes": len(memory)}
        await successor.claim(Incarnation(A, 2), 8)
        assert await successor.recall(Incarnation(A, 1)) is None
        await successor.close()


async def test_a_writer_whose_records_are_missing_is_asked_to_come_again() -> None:
    async with serving() as server:
        writer = writer_to(server)
        await writer.claim(Incarnation(A, 1), 7)
        server.reread([A, B])
        with pytest.raises(StoreError, match="gap"):
            await append_for_ever(writer)
        await writer.claim(Incarnation(A, 1), 8)
        assert writer.writers == 1
        await writer.close()


async def test_a_newer_connection_replaces_the_older() -> None:
    async with serving() as server:
        older, newer = writer_to(server), writer_to(server)
        await older.claim(Incarnation(A, 1), 1)
        await newer.claim(Incarnation(A, 1), 2)
        with pytest.raises(Fenced):
            await append_for_ever(older)
        await newer.append(b"new")
        assert (await take(server, 1))[-1] == b"new"
        assert server.writers == 1
        await newer.close()


async def test_an_earlier_life_is_fenced() -> None:
    async with serving() as server:
        late, current = writer_to(server), writer_to(server)
        await current.claim(Incarnation(A, 20), 1)
        with pytest.raises(Fenced):
            await late.claim(Incarnation(A, 10), 2)
        await current.append(b"still here")
        assert await take(server, 1) == [b"still here"]
        await current.close()


async def test_a_token_is_needed_where_one_is_set() -> None:
    async with serving(token="secret-token") as server:
        for token in (None, "", "wrong", "schlüssel"):
            with pytest.raises(StoreError, match="refused us: token") as caught:
                await writer_to(server, token).claim(Incarnation(A, 1), 1)
            assert "secret" not in str(caught.value)
        good = writer_to(server, "secret-token")
        await good.claim(Incarnation(A, 1), 1)
        await good.close()
        assert server.refused == {"token": 4}


async def test_without_a_token_only_loopback_may_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as server:
        monkeypatch.setattr(port, "_is_loopback", lambda _: False)
        with pytest.raises(StoreError, match="token"):
            await writer_to(server).claim(Incarnation(A, 1), 1)


@pytest.mark.parametrize(
    ("peer", "loopback"),
    [
        (("127.0.0.1", 5), True),
        (("127.9.9.9", 5), True),
        (("::1", 5, 0, 0), True),
        (("::ffff:127.0.0.1", 5, 0, 0), True),
        (("::ffff:10.0.0.1", 5, 0, 0), False),
        (("fe80::1%eth0", 5, 0, 0), False),
        (("10.0.0.1", 5), False),
        ("", False),
        (("odd", 5), False),
        (None, False),
    ],
)
def test_what_is_loopback(peer: object, loopback: bool) -> None:
    assert port._is_loopback(peer) is loopback


async def test_strangers_are_refused_until_they_are_members() -> None:
    members: set[EndpointId] = set()
    async with serving(is_member=members.__contains__) as server:
        writer = writer_to(server)
        with pytest.raises(StoreError, match="no-member"):
            await writer.claim(Incarnation(A, 1), 1)
        members.add(A)
        await writer.claim(Incarnation(A, 1), 1)
        await writer.close()


async def test_connections_are_bounded() -> None:
    async with serving(connections=1) as server:
        first = writer_to(server)
        await first.claim(Incarnation(A, 1), 1)
        with pytest.raises(StoreError, match="full"):
            await writer_to(server).claim(Incarnation(B, 1), 1)
        await first.close()
        await until(lambda: server.writers == 0)
        second = writer_to(server)
        await second.claim(Incarnation(B, 1), 1)
        await second.close()


async def raw(server: StateServer, *pieces: bytes) -> bytes:
    """What the server says to these bytes until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for piece in pieces:
        writer.write(piece)
    async with asyncio.timeout(scaled(5)):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def refusal(answer: bytes) -> str:
    return pb.Welcome.FromString(answer[4:]).refused


async def test_what_is_no_hello_is_refused() -> None:
    async with serving(hello_s=0.1) as server:
        assert refusal(await raw(server, frame(b"\xff\xff"))) == "damaged"
        assert refusal(await raw(server, frame(pb.Hello(version=9).SerializeToString()))) == (
            "version"
        )
        odd = pb.Hello(version=1, endpoint="odd")
        assert refusal(await raw(server, frame(odd.SerializeToString()))) == "endpoint"
        assert refusal(await raw(server, (MAX_FRAME + 1).to_bytes(4, "big"))) == "too-large"
        assert refusal(await raw(server, b"\x00\x00")) == "slow"
        assert set(server.refused) == {"damaged", "version", "endpoint", "too-large", "slow"}


async def append_until_refused(writer: StateWriter) -> None:
    """The server's word may still be on its way."""
    for _ in range(500):
        await writer.append(b"x")
        await asyncio.sleep(0.01)


async def test_a_silent_writer_is_let_go() -> None:
    async with serving(idle_s=scaled(0.3)) as server:
        writer = writer_to(server)
        await writer.claim(Incarnation(A, 1), 1)
        for _ in range(4):
            await asyncio.sleep(scaled(0.1))
            await writer.append(b"x")
        assert server.writers == 1
        await until(lambda: server.writers == 0)
        with pytest.raises(StoreError, match="idle"):
            await append_until_refused(writer)


async def test_a_reader_that_falls_behind_holds_the_writers_back() -> None:
    async with serving(queued_bytes=100_000) as server:
        writer = StateWriter("127.0.0.1", server.port, timeout_s=0.3)
        await writer.claim(Incarnation(A, 1), 1)
        with pytest.raises(StoreError, match="does not take any more"):
            await append_for_ever(writer, b"x" * 50_000, 0.0)
        assert sum(map(len, server._records)) < 2_000_000


async def test_reading_goes_on_after_it_was_held_back() -> None:
    async with serving(queued_bytes=10_000) as server:
        writer = writer_to(server)
        await writer.claim(Incarnation(A, 1), 1)
        sent = [bytes([number]) * 5_000 for number in range(200)]

        async def write() -> None:
            for record in sent:
                await writer.append(record)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            assert await take(server, 200) == sent
        await writer.close()


async def test_an_absent_picker_is_a_store_error_and_so_is_one_that_leaves() -> None:
    async with serving() as server:
        writer = writer_to(server)
        await writer.claim(Incarnation(A, 1), 1)
    with pytest.raises(StoreError):
        await append_for_ever(writer)
    with pytest.raises(StoreError, match="claim first"):
        await writer.append(b"x")
    with pytest.raises(StoreError, match="cannot be reached"):
        await writer.claim(Incarnation(A, 1), 2)


async def test_something_else_on_the_port_is_a_store_error() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        other = StateWriter("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(StoreError):
            await other.claim(Incarnation(A, 1), 1)


async def test_batches_hold_what_arrived_together() -> None:
    async with serving() as server:
        one, two = writer_to(server), writer_to(server)
        await one.claim(Incarnation(A, 1), 1)
        await two.claim(Incarnation(B, 1), 1)
        await one.append(b"1")
        await two.append(b"2")
        await until(lambda: len(server._records) == 2)
        assert await anext(aiter(server.records())) == [b"1", b"2"]
        await one.close()
        await two.close()


async def test_a_url_says_which_store() -> None:
    assert isinstance(open_writer("tcp://127.0.0.1:9004", POOL), StateWriter)
    assert isinstance(open_writer("tcp://[::1]", POOL), StateWriter)
    redis = open_writer("redis://127.0.0.1:1/0", POOL, "p@:/#%?x")
    assert isinstance(redis, RedisWriter)
    await redis.close()
    for bad in ("http://x", "tcp://", "tcp://x:y", ""):
        with pytest.raises(ConfigError):
            open_writer(bad, POOL)
