"""Odd clients on raw sockets: each gets an answer or a closed connection, and never hangs."""

import asyncio

import pytest

from sidecar.proxy import Limits, Outcome
from tests.fakes.relays import relay_to
from tests.fakes.upstreams import Conversation, RawUpstream, answer
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("each_relay")

HOST = b"Host: x\r\n"


async def echo(talk: Conversation) -> None:
    """Answers with the request's own body."""
    await answer(talk.request.body)(talk)


async def test_pipelined_requests_are_answered_in_order() -> None:
    upstream = RawUpstream(echo)
    requests = b"".join(
        b"POST /%d HTTP/1.1\r\n" % n + HOST + b"Content-Length: 1\r\n\r\n%d" % n for n in range(9)
    )
    last = b"POST /9 HTTP/1.1\r\n" + HOST + b"Connection: close\r\nContent-Length: 1\r\n\r\n9"
    async with upstream.running(), relay_to(upstream.port) as rig:
        got = await rig.raw(requests + last)
    answers = got.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [one.rpartition(b"\r\n\r\n")[2] for one in answers] == [b"%d" % n for n in range(10)]


async def test_a_flood_of_pipelined_requests_is_served_within_bounds() -> None:
    upstream = RawUpstream(answer())
    async with upstream.running(), relay_to(upstream.port) as rig:
        reader, writer = await rig.connect()
        writer.write((b"GET / HTTP/1.1\r\n" + HOST + b"\r\n") * 2000)
        got = b""
        async with asyncio.timeout(30):
            while got.count(b"HTTP/1.1 200 OK") < 2000:
                got += await reader.read(1 << 16)
        writer.close()
    assert got.count(b"HTTP/1.1 200 OK") == len(upstream.received) == 2000
    assert upstream.connections == 1, "one after the other"


async def test_a_client_that_waits_for_100_continue_gets_it_even_from_an_engine_that_has_none() -> (
    None
):
    upstream = RawUpstream(echo)
    async with upstream.running(), relay_to(upstream.port) as rig:
        reader, writer = await rig.connect()
        writer.write(
            b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        )
        async with asyncio.timeout(5):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"hello")
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 OK")
        writer.close()
    assert upstream.received[0].values(b"expect") == []


async def test_a_body_beyond_the_limit_is_refused_before_100_continue() -> None:
    async with relay_to(1, Limits(max_body_bytes=10)) as rig:
        got = await rig.raw(
            b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 11\r\n\r\n",
            until_close=False,
        )
    assert got.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: abc\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", b"400"),
        (
            b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx",
            b"400",
        ),
        (
            b"POST / HTTP/1.1\r\n"
            + HOST
            + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"400",
        ),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X-A: a\x00b\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X-A : a\r\n\r\n", b"400"),
        (b"NONSENSE\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", b"400"),
        (b"CONNECT evil.example:80 HTTP/1.1\r\n" + HOST + b"\r\n", b"405"),
        (
            b"GET / HTTP/1.1\r\n"
            + HOST
            + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n",
            b"400",
        ),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Expect: tea\r\nContent-Length: 1\r\n\r\nx", b"417"),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_and_the_connection_closed(
    request_: bytes, status: bytes
) -> None:
    assert await refused(request_) == status


@pytest.mark.parametrize("fields", [b"X-A: " + b"a" * 40_000 + b"\r\n", b"X-A: a\r\n" * 200])
async def test_a_head_that_is_too_large_is_refused_by_a_status_of_its_own(
    fields: bytes, each_relay: str
) -> None:
    """aiohttp's parser answers by itself, and calls it a bad request."""
    status = b"431" if each_relay == "own" else b"400"
    assert await refused(b"GET / HTTP/1.1\r\n" + HOST + fields + b"\r\n") == status


async def refused(request: bytes) -> bytes:
    """The status of the answer to it, behind which the relay serves on."""
    upstream = RawUpstream(answer(b"fine"))
    async with upstream.running(), relay_to(upstream.port) as rig:
        got = await rig.raw(request)
        assert rig.relay.in_flight == 0
        async with rig.session.get(rig.url + "/") as response:
            assert await response.read() == b"fine"
    return got.split(b" ", 2)[1]


async def test_a_body_whose_framing_breaks_is_given_up(each_relay: str) -> None:
    """aiohttp does not tell the body's reader, so that there it is like one that stopped."""
    status, code = (400, "bad-body") if each_relay == "own" else (408, "upload-stalled")
    upstream = RawUpstream(echo)
    async with upstream.running(), relay_to(upstream.port, Limits(upload_idle_s=0.2)) as rig:
        reader, writer = await rig.connect()
        writer.write(
            b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
        )
        await until(lambda: rig.relay.held_bytes)
        writer.write(b"zz\r\n")
        async with asyncio.timeout(5):
            got = await reader.readuntil(b'"%b"}}' % code.encode())
        writer.close()
        ended = await rig.notes.last()
        assert rig.relay.held_bytes == 0
    assert got.startswith(b"HTTP/1.1 %d " % status)
    assert upstream.received == [], "an engine gets whole bodies only"
    assert (ended.outcome, ended.status) == (Outcome.CLIENT_GONE, status)


async def test_a_client_of_http_1_0_gets_its_answer_and_the_end_of_the_connection() -> None:
    upstream = RawUpstream(echo)
    async with upstream.running(), relay_to(upstream.port) as rig:
        got = await rig.raw(b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello")
    assert got.startswith((b"HTTP/1.0 200 OK", b"HTTP/1.1 200 OK"))
    assert got.endswith(b"hello")


async def test_one_byte_at_a_time_is_a_request_like_any_other() -> None:
    upstream = RawUpstream(echo)
    async with upstream.running(), relay_to(upstream.port) as rig:
        reader, writer = await rig.connect()
        for byte in b"POST /x HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_client_that_stops_uploading_is_given_up() -> None:
    upstream = RawUpstream(echo)
    async with upstream.running(), relay_to(upstream.port, Limits(upload_idle_s=0.2)) as rig:
        got = await rig.raw(
            b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nhel", until_close=False
        )
        assert got.startswith(b"HTTP/1.1 408")
    assert upstream.received == []


async def test_a_client_that_stops_reading_is_given_up() -> None:
    async def endless(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await talk.chunk(b"x" * 65536)

    upstream = RawUpstream(endless)
    async with upstream.running(), relay_to(upstream.port, Limits(idle_timeout_s=0.3)) as rig:
        reader, writer = await rig.connect()
        writer.write(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        await asyncio.wait_for(upstream.gone.wait(), 10)
        assert (await rig.notes.last()).outcome is not Outcome.OK
        writer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 40_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-A: a\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: a\x01b\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
async def test_an_engine_whose_headers_are_unfit_is_502(head: bytes) -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(head)

    upstream = RawUpstream(script)
    async with (
        upstream.running(),
        relay_to(upstream.port) as rig,
        rig.session.get(rig.url + "/") as response,
    ):
        assert response.status == 502
        assert response.headers["content-type"] == "application/json"


async def test_informational_answers_of_the_engine_are_passed_over() -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        await answer(b"fine")(talk)

    upstream = RawUpstream(script)
    async with (
        upstream.running(),
        relay_to(upstream.port) as rig,
        rig.session.get(rig.url + "/") as response,
    ):
        assert (response.status, await response.read()) == (200, b"fine")
