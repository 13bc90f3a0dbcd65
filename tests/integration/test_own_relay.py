"""What only our own relay bounds and does, on real sockets."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvloop

from sidecar.proxy import Limits, Outcome
from sidecar.ranked import Ranked
from sidecar.relay import pool
from sidecar.relay.answers import MAX_INTERIM
from sidecar.relay.server import OwnRelay
from tests.fakes.relays import Rig, relay_to
from tests.fakes.upstreams import Conversation, RawUpstream, answer
from tests.fakes.waiting import until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


@asynccontextmanager
async def own(port: int, limits: Limits | None = None) -> AsyncIterator[tuple[Rig, OwnRelay]]:
    async with relay_to(port, limits) as rig:
        assert isinstance(rig.relay, OwnRelay)
        yield rig, rig.relay


async def test_one_more_than_the_connections_is_closed_at_once_and_counted() -> None:
    upstream = RawUpstream(answer())
    async with upstream.running(), own(upstream.port, Limits(max_connections=2)) as (rig, relay):
        open_ = [await rig.connect() for _ in range(2)]
        await until(lambda: relay.connections == 2)
        reader, writer = await rig.connect()
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert (relay.connections, relay.refused) == (2, 1)
        for _, writer in open_:
            writer.close()
        await until(lambda: relay.connections == 0)
        assert (await rig.raw(GET, until_close=False)).startswith(b"HTTP/1.1 200")


async def test_a_head_that_does_not_come_is_given_up_with_408() -> None:
    async with own(1, Limits(head_timeout_s=0.2)) as (rig, relay):
        assert (await rig.raw(b"GET / HTTP/1.1\r\nHos")).startswith(b"HTTP/1.1 408 ")
        await until(lambda: relay.connections == 0)


async def test_a_connection_on_which_nothing_comes_is_closed_without_a_word() -> None:
    async with own(1, Limits(head_timeout_s=0.2)) as (rig, _):
        reader, writer = await rig.connect()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(10):
                await reader.readexactly(1)
        writer.close()


async def test_an_idle_connection_is_closed_after_its_time_and_not_before() -> None:
    upstream = RawUpstream(answer())
    limits = Limits(client_keepalive_s=0.3, head_timeout_s=0.4)
    async with upstream.running(), own(upstream.port, limits) as (rig, relay):
        reader, writer = await rig.connect()
        for _ in range(2):
            writer.write(GET)
            assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200")
        assert relay.connections == 1
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(10):
                await reader.readexactly(1)
        writer.close()


async def test_an_exchange_that_takes_longer_than_all_of_its_time_is_504() -> None:
    async def script(talk: Conversation) -> None:
        await talk.reader.readexactly(1)

    upstream = RawUpstream(script)
    limits = Limits(total_timeout_s=0.3)
    async with upstream.running(), own(upstream.port, limits) as (rig, _):
        got = await rig.raw(GET)
        assert got.startswith(b"HTTP/1.1 504 ")
        assert b'"too-long"' in got


async def test_an_exchange_in_which_bytes_move_ends_with_its_time_all_the_same() -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await talk.chunk(b"x")
            await asyncio.sleep(0.05)

    upstream = RawUpstream(script)
    limits = Limits(idle_timeout_s=60, total_timeout_s=0.4)
    async with upstream.running(), own(upstream.port, limits) as (rig, _):
        got = await rig.raw(GET)
        assert not got.endswith(b"0\r\n\r\n")
        assert (await rig.notes.last()).outcome is Outcome.ENGINE_GONE


async def test_trailers_are_read_and_dropped_in_both_directions() -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await talk.send(b"2;x=y\r\nhi\r\n0\r\nX-Secret: 1\r\n\r\n")

    upstream = RawUpstream(script)
    chunked = (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2;q=1\r\n{}\r\n0\r\nX-Trailer: 1\r\n\r\n"
    )
    async with upstream.running(), own(upstream.port) as (rig, _):
        reader, writer = await rig.connect()
        writer.write(chunked)
        got = await reader.readuntil(b"0\r\n\r\n")
        writer.close()
    assert got.endswith(b"2\r\nhi\r\n0\r\n\r\n")
    assert upstream.received[0].body == b"{}"


async def test_an_early_answer_is_read_by_a_client_that_still_uploads() -> None:
    upstream = RawUpstream(answer())
    async with upstream.running(), own(upstream.port, Limits(max_body_bytes=10)) as (rig, _):
        reader, writer = await rig.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n")
        for _ in range(50):
            writer.write(b"x" * 100_000)
            await asyncio.sleep(0)
        got = await reader.readuntil(b"}}")
        writer.close()
    assert got.startswith(b"HTTP/1.1 413 ")
    assert b"Connection: close" in got
    assert upstream.received == []


async def test_a_client_that_ends_its_side_has_left() -> None:
    async def script(talk: Conversation) -> None:
        await talk.reader.readexactly(1)

    upstream = RawUpstream(script)
    async with upstream.running(), own(upstream.port) as (rig, _):
        _, writer = await rig.connect()
        writer.write(POST)
        await until(lambda: upstream.received)
        writer.write_eof()
        await asyncio.wait_for(upstream.gone.wait(), 5)
        assert (await rig.notes.last()).outcome is Outcome.CLIENT_GONE
        writer.close()


async def test_bytes_behind_an_answer_make_its_connection_unusable() -> None:
    async def script(talk: Conversation) -> None:
        evil = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
        await talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}" + evil)

    upstream = RawUpstream(script)
    async with upstream.running(), own(upstream.port) as (rig, _):
        for _ in range(3):
            got = await rig.raw(GET, until_close=False)
            assert got.endswith(b"\r\n\r\n{}")
    assert upstream.connections == 3


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n",
        b"Content-Length: +2\r\n",
        b"Content-Length: 0x2\r\n",
        b"Content-Length: 2, 2\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length : 2\r\n",
        b"X-A: 1\r\n Content-Length: 2\r\n",
        b"X-A: 1\nContent-Length: 2\r\n",
        b"X-A: 1\rContent-Length: 2\r\n",
    ],
)
async def test_an_answer_that_two_readers_would_frame_differently_is_garbled(head: bytes) -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n{}0\r\n\r\n")

    upstream = RawUpstream(script)
    async with upstream.running(), own(upstream.port) as (rig, _):
        got = await rig.raw(GET, until_close=False)
    assert got.startswith(b"HTTP/1.1 502 ")
    assert b'"engine-garbled"' in got


async def test_what_a_client_sends_ahead_waits_as_bytes_and_is_bounded() -> None:
    more = asyncio.Event()

    async def script(talk: Conversation) -> None:
        await more.wait()
        await answer()(talk)

    upstream = RawUpstream(script)
    async with upstream.running(), own(upstream.port) as (rig, _):
        reader, writer = await rig.connect()
        writer.write(GET * 200_000)  # 5 MB
        await until(lambda: rig.relay.in_flight == 1)
        for _ in range(5):
            await asyncio.sleep(0.1)
        before = writer.transport.get_write_buffer_size()
        gc.collect()
        heads = sum(type(one).__name__ == "Incoming" for one in gc.get_objects())
        assert before > 0, "the relay read all of it"
        assert heads < 2000
        writer.transport.abort()
        more.set()
        await until(lambda: rig.relay.in_flight == 0)
        del reader


def test_the_relay_serves_on_the_event_loop_of_production() -> None:
    """uvloop's transports differ from asyncio's in more than their class."""

    async def scene() -> None:
        async def script(talk: Conversation) -> None:
            if b"stream" in talk.request.line:
                await talk.send(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n"
                )
                for n in range(50):
                    await talk.chunk(b"data: %d\n\n" % n)
                await talk.send(b"0\r\n\r\n")
                return
            await answer(talk.request.body or b"{}")(talk)

        upstream = RawUpstream(script)
        async with upstream.running(), own(upstream.port, Limits(max_body_bytes=800_000)) as it:
            rig, relay = it
            for n in range(20):
                body = b"x" * (n * 40_000)
                async with rig.session.post(rig.url + "/", data=body) as response:
                    assert response.status == 200
                    assert await response.read() == (body or b"{}")
            async with rig.session.post(rig.url + "/stream", data=b"{}") as response:
                whole = b"".join(b"data: %d\n\n" % n for n in range(50))
                assert await response.read() == whole
            async with rig.session.post(rig.url + "/", data=b"x" * 1_000_000) as response:
                assert response.status == 413
            reader, writer = await rig.connect()
            writer.write(GET * 300)
            got = b""
            while got.count(b"HTTP/1.1 200 OK") < 300:
                got += await reader.read(1 << 16)
            writer.close()
            form = {"Content-Type": "multipart/form-data; boundary=x"}
            async with rig.session.post(rig.url + "/", data=b"x" * 300_000, headers=form) as one:
                assert await one.read() == b"x" * 300_000
            await until(lambda: relay.in_flight == 0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())


async def test_what_stands_before_the_engine_sees_every_request_of_a_kept_connection() -> None:
    upstream = RawUpstream(answer(b"{}"))
    async with upstream.running(), own(upstream.port) as (rig, relay):
        service = relay._service
        service.upstream = Ranked(service.upstream, 3)
        reader, writer = await rig.connect()
        for _ in range(3):
            writer.write(POST)
            await reader.readuntil(b"{}")
        writer.close()
    assert [b"x-data-parallel-rank: 3" in one.head for one in upstream.received] == [True] * 3


async def test_spare_connections_are_kept_up_to_the_limit_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "MAX_SPARE", 2)
    all_here = asyncio.Event()

    async def script(talk: Conversation) -> None:
        if len(upstream.received) == 3:
            all_here.set()
        await all_here.wait()
        await answer()(talk)

    upstream = RawUpstream(script)
    async with upstream.running(), own(upstream.port) as (rig, relay):
        assert relay.spare_engine_connections == 0
        await asyncio.gather(*(rig.raw(GET, until_close=False) for _ in range(3)))
        await until(lambda: relay.engine_connections == 2)
        assert relay.spare_engine_connections == 2


@pytest.mark.parametrize(("interim", "status"), [(MAX_INTERIM, b"200"), (MAX_INTERIM + 1, b"502")])
async def test_informational_answers_are_passed_over_up_to_the_limit(
    interim: int, status: bytes
) -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 103 Early Hints\r\n\r\n" * interim)
        await answer()(talk)

    upstream = RawUpstream(script)
    async with upstream.running(), own(upstream.port) as (rig, _):
        got = await rig.raw(GET, until_close=False)
    assert got.split(b" ", 2)[1] == status
