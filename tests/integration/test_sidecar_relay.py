"""The relay on real sockets: what goes in comes out, in both directions."""

import asyncio
import gzip
import hashlib
import io
import json
import os
import socket
import time
from contextlib import ExitStack

import aiohttp
import pytest

from epp.bodies.usage import Unknown, Usage
from epp.protocol import ADMIN_TOKEN, ROUTING_HEADERS
from sidecar.proxy import Limits, Outcome
from sidecar.transfer.legs import LEG_HEADER
from tests.fakes.relays import relay_for, relay_to
from tests.fakes.upstreams import Conversation, RawUpstream, answer
from tests.fakes.waiting import until
from tests.timing import scaled

pytestmark = pytest.mark.usefixtures("each_relay")

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 64},
}
DECISION = {"x-epp-decision-id": "d-1", "x-epp-predicted-cached-tokens": "64"}
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def sse(events: list[bytes], *, gap_s: float = 0.0, done: bool = True):
    async def script(talk: Conversation) -> None:
        await talk.send(SSE_HEAD)
        for event in events:
            await talk.chunk(b"data: " + event + b"\n\n")
            if gap_s:
                await asyncio.sleep(gap_s)
        if done:
            await talk.chunk(b"data: [DONE]\n\n")
        await talk.send(b"0\r\n\r\n")

    return script


async def test_a_json_answer_passes_and_its_usage_is_reported() -> None:
    body = json.dumps({"id": "x", "usage": USAGE}).encode()
    upstream = RawUpstream(answer(body, fields=b"Content-Type: application/json\r\n"))
    async with upstream.running(), relay_to(upstream.port) as rig:
        async with (
            aiohttp.ClientSession(),
            rig.session.post(
                rig.url + "/v1/completions", data=b'{"prompt":"hi"}', headers=DECISION
            ) as response,
        ):
            assert response.status == 200
            assert await response.read() == body
        ended = await rig.notes.last()
    assert ended.outcome is Outcome.OK
    assert ended.decision_id == "d-1"
    assert ended.predicted_cached_tokens == 64
    assert ended.usage == Usage(100, 64, 20)
    assert ended.usage_unknown is None
    assert [decision for decision, _ in rig.notes.first] == ["d-1"]
    assert upstream.received[0].body == b'{"prompt":"hi"}'


async def test_two_hundred_events_pass_one_by_one_and_unchanged() -> None:
    events = [json.dumps({"n": n, "text": "é" * (n % 7)}).encode() for n in range(200)]
    events.append(json.dumps({"choices": [], "usage": USAGE}).encode())
    upstream = RawUpstream(sse(events, gap_s=0.002))
    arrivals: list[float] = []
    body = b""
    async with upstream.running(), relay_to(upstream.port) as rig:
        async with rig.session.post(rig.url + "/v1/completions", data=b"{}") as response:
            assert response.headers["content-type"] == "text/event-stream"
            async for piece, _ in response.content.iter_chunks():
                arrivals.append(time.monotonic())
                body += piece
        ended = await rig.notes.last()
    expected = b"".join(b"data: " + event + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    assert body == expected
    assert len(arrivals) > 150, "events were batched"
    assert ended.usage == Usage(100, 64, 20)


async def test_the_first_event_is_not_held_back_for_the_second() -> None:
    more = asyncio.Event()

    async def script(talk: Conversation) -> None:
        await talk.send(SSE_HEAD)
        await talk.chunk(b"data: 1\n\n")
        await more.wait()
        await talk.send(b"0\r\n\r\n")

    upstream = RawUpstream(script)
    async with (
        upstream.running(),
        relay_to(upstream.port) as rig,
        rig.session.post(rig.url + "/", data=b"{}") as response,
    ):
        assert await response.content.readany() == b"data: 1\n\n"
        more.set()
        assert await response.content.read() == b""


async def test_headers_pass_before_the_body_begins() -> None:
    more = asyncio.Event()

    async def script(talk: Conversation) -> None:
        await talk.send(SSE_HEAD)
        await more.wait()
        await talk.send(b"0\r\n\r\n")

    upstream = RawUpstream(script)
    async with (
        upstream.running(),
        relay_to(upstream.port) as rig,
        rig.session.post(rig.url + "/", data=b"{}", headers=DECISION) as response,
    ):
        assert response.status == 200
        assert rig.notes.first == []
        more.set()
        await response.read()


@pytest.mark.parametrize("chunked", [False, True])
async def test_five_megabytes_pass_both_ways(chunked: bool) -> None:
    up, down = os.urandom(5 << 20), os.urandom(5 << 20)
    upstream = RawUpstream(answer(down))

    async def pieces():
        for start in range(0, len(up), 100_000):
            yield up[start : start + 100_000]

    async with upstream.running(), relay_to(upstream.port) as rig:
        data = pieces() if chunked else io.BytesIO(up)
        async with rig.session.post(rig.url + "/v1/completions", data=data) as response:
            got = await response.read()
    assert hashlib.sha256(got).digest() == hashlib.sha256(down).digest()
    assert hashlib.sha256(upstream.received[0].body).digest() == hashlib.sha256(up).digest()


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_beyond_the_limit_is_refused_and_at_the_limit_passes(declared: bool) -> None:
    upstream = RawUpstream(answer(b"{}"))
    limits = Limits(max_body_bytes=100_000)

    async def pieces(size: int):
        for _ in range(0, size, 1000):
            yield b"x" * 1000
        yield b"x" * (size % 1000)

    async with upstream.running(), relay_to(upstream.port, limits) as rig:
        for size, status in ((100_000, 200), (100_001, 413)):
            data = b"x" * size if declared else pieces(size)
            async with rig.session.post(rig.url + "/", data=data) as response:
                assert response.status == status
                body = await response.read()
    assert json.loads(body)["error"]["code"] == "too-large"
    assert [ended.status for ended in rig.notes.over] == [200, 413]


async def test_routing_and_hop_by_hop_headers_stop_here_and_others_pass() -> None:
    upstream = RawUpstream(answer())
    names = [name for name in ROUTING_HEADERS if name != LEG_HEADER]  # that one is refused
    names.append(ADMIN_TOKEN)
    extra = b"".join(b"%b: evil\r\n" % name.encode() for name in names)
    request = (
        b"POST /v1/completions?a=1&a=2 HTTP/1.1\r\nHost: gateway.example\r\n"
        b"Connection: keep-alive, X-Private\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n"
        b"TE: trailers\r\nProxy-Authorization: Basic x\r\nAuthorization: Bearer key\r\n"
        b"X-Request-Id: r-1\r\nCookie: a=1\r\nX-Twice: 1\r\nX-Twice: 2\r\nContent-Length: 2\r\n"
        + extra
        + b"\r\n{}"
    )
    async with upstream.running(), relay_to(upstream.port) as rig:
        await rig.raw(request, until_close=False)
    received = upstream.received[0]
    assert received.line == b"POST /v1/completions?a=1&a=2 HTTP/1.1"
    assert sorted(received.fields) == [
        (b"authorization", b"Bearer key"),
        (b"content-length", b"2"),
        (b"cookie", b"a=1"),
        (b"host", b"gateway.example"),
        (b"x-request-id", b"r-1"),
        (b"x-twice", b"1"),
        (b"x-twice", b"2"),
    ]


async def test_response_headers_pass_as_they_are_with_nothing_added() -> None:
    upstream = RawUpstream(
        answer(
            b"hi",
            fields=b"Date: Mon, 01 Jan 2024 00:00:00 GMT\r\nServer: uvicorn\r\nSet-Cookie: a=1\r\n"
            b"Set-Cookie: b=2\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
            b"X-Custom: yes\r\n",
        )
    )
    async with upstream.running(), relay_to(upstream.port) as rig:
        got = await rig.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", until_close=False)
    head, _, body = got.partition(b"\r\n\r\n")
    assert body == b"hi"
    assert sorted(head.split(b"\r\n")) == sorted(
        [
            b"HTTP/1.1 200 OK",
            b"Content-Length: 2",
            b"Date: Mon, 01 Jan 2024 00:00:00 GMT",
            b"Server: uvicorn",
            b"Set-Cookie: a=1",
            b"Set-Cookie: b=2",
            b"X-Custom: yes",
        ]
    )


@pytest.mark.parametrize("status", [b"301 Moved Permanently", b"307 Temporary Redirect"])
async def test_a_redirect_is_passed_on_and_not_followed(status: bytes) -> None:
    upstream = RawUpstream(answer(b"", status=status, fields=b"Location: /elsewhere\r\n"))
    async with (
        upstream.running(),
        relay_to(upstream.port) as rig,
        rig.session.get(rig.url + "/", allow_redirects=False) as response,
    ):
        assert response.status == int(status[:3])
        assert response.headers["location"] == "/elsewhere"
    assert len(upstream.received) == 1


async def test_a_chunked_answer_with_trailers_passes() -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n")
        await talk.chunk(b"hello")
        await talk.send(b"0\r\nX-Sum: 1\r\n\r\n")

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        for _ in range(3):
            async with rig.session.get(rig.url + "/") as response:
                assert await response.read() == b"hello"
    assert upstream.connections == 1


async def test_an_answer_that_ends_with_its_connection_passes() -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        talk.writer.close()

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        async with rig.session.get(rig.url + "/") as response:
            assert await response.read() == b"hello"
        got = await rig.raw(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert got.endswith(b"\r\n\r\nhello")


async def test_connections_to_the_engine_are_reused() -> None:
    upstream = RawUpstream(answer())
    async with upstream.running(), relay_to(upstream.port) as rig:
        for _ in range(20):
            async with rig.session.post(rig.url + "/", data=b"{}") as response:
                assert response.status == 200
    assert upstream.connections == 1


async def test_a_slow_reader_holds_the_engine_back_within_bounded_memory() -> None:
    sent = 0
    total = 64 << 20

    async def script(talk: Conversation) -> None:
        nonlocal sent
        await talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent < total:
            await talk.send(b"x" * 65536)
            sent += 65536

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        reader, writer = await rig.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 24 << 20, "the relay or its buffers swallowed the answer"
        writer.transport.resume_reading()
        left = total
        while left:
            left -= len(await reader.read(1 << 20))
        writer.close()
    assert sent == total


async def test_a_client_that_leaves_ends_the_engine_leg_at_once() -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(SSE_HEAD)
        await talk.chunk(b"data: 1\n\n")
        await talk.reader.readexactly(1)

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        reader, writer = await rig.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await reader.readuntil(b"data: 1")
        writer.close()
        left = time.monotonic()
        await asyncio.wait_for(upstream.gone.wait(), 5)
        assert time.monotonic() - left < scaled(0.1)
        assert (await rig.notes.last()).outcome is Outcome.CLIENT_GONE
        assert rig.relay.in_flight == 0


async def test_a_client_that_leaves_before_the_answer_ends_the_engine_leg_at_once() -> None:
    async def script(talk: Conversation) -> None:
        await talk.reader.readexactly(1)

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        _, writer = await rig.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await until(lambda: upstream.received)
        await asyncio.sleep(0.02)
        writer.close()
        await asyncio.wait_for(upstream.gone.wait(), 5)
        ended = await rig.notes.last()
    assert (ended.outcome, ended.status) == (Outcome.CLIENT_GONE, 0)


@pytest.mark.parametrize("form", [False, True])
async def test_a_client_that_leaves_in_mid_upload_leaves_nothing_behind(form: bool) -> None:
    upstream = RawUpstream(answer())
    kind = b"multipart/form-data; boundary=x" if form else b"application/json"
    async with upstream.running(), relay_to(upstream.port) as rig:
        _, writer = await rig.connect()
        writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: " + kind + b"\r\n"
            b"Content-Length: 1000\r\n\r\nxxx"
        )
        await until(lambda: upstream.received if form else rig.relay.held_bytes == 3)
        writer.close()
        assert (await rig.notes.last()).outcome is Outcome.CLIENT_GONE
        if form:  # it went to the engine as it came
            await asyncio.wait_for(upstream.gone.wait(), 5)
        assert (rig.relay.held_bytes, rig.relay.in_flight) == (0, 0)
    assert len(upstream.received) == form


async def test_an_engine_that_refuses_is_503_in_json_and_marked_gone() -> None:
    upstream = RawUpstream(answer())
    async with upstream.running():
        pass
    async with relay_to(upstream.port) as rig:
        async with rig.session.post(rig.url + "/", data=b"{}", headers=DECISION) as response:
            assert response.status == 503
            assert response.headers["content-type"] == "application/json"
            assert json.loads(await response.read())["error"]["code"] == "engine-absent"
        ended = await rig.notes.last()
    assert (ended.outcome, ended.status) == (Outcome.ENGINE_GONE, 503)
    assert rig.notes.refused == 1
    assert rig.notes.first == []


async def test_an_engine_too_busy_to_accept_is_503_and_not_marked_gone() -> None:
    with socket.socket() as full, ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # nobody accepts: the queue is full, and later ones wait
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        limits = Limits(connect_timeout_s=0.2)
        async with relay_to(full.getsockname()[1], limits) as rig:
            async with rig.session.post(rig.url + "/", data=b"{}", headers=DECISION) as response:
                assert response.status == 503
                assert json.loads(await response.read())["error"]["code"] == "engine-unreached"
            await rig.notes.last()
    assert (rig.notes.refused, rig.notes.suspect) == (0, 1)


@pytest.mark.parametrize("answered", [b"", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_an_engine_that_hangs_up_before_its_headers_is_502(answered: bytes) -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(answered)
        talk.writer.close()

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        async with rig.session.post(rig.url + "/", data=b"{}") as response:
            assert response.status == 502
            assert json.loads(await response.read())["error"]["type"] == "bad_gateway"
        assert (await rig.notes.last()).outcome is Outcome.ENGINE_GONE
    assert len(upstream.received) == 1, "a fresh connection is never tried twice"
    assert rig.notes.suspect == 1


async def test_garbage_from_the_engine_is_502() -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(b"SPDY go away\r\n\r\n")

    upstream = RawUpstream(script)
    async with (
        upstream.running(),
        relay_to(upstream.port) as rig,
        rig.session.post(rig.url + "/", data=b"{}") as response,
    ):
        assert response.status == 502
        assert json.loads(await response.read())["error"]["code"] == "engine-garbled"


async def test_an_engine_that_never_answers_is_504_after_the_idle_timeout() -> None:
    async def script(talk: Conversation) -> None:
        await talk.reader.readexactly(1)

    upstream = RawUpstream(script)
    limits = Limits(idle_timeout_s=0.2)
    async with upstream.running(), relay_to(upstream.port, limits) as rig:
        async with rig.session.post(rig.url + "/", data=b"{}") as response:
            assert response.status == 504
            assert json.loads(await response.read())["error"]["code"] == "engine-silent"
        await asyncio.wait_for(upstream.gone.wait(), 5)


async def test_an_answer_longer_than_the_idle_timeout_passes_while_bytes_move() -> None:
    upstream = RawUpstream(sse([b"%d" % n for n in range(12)], gap_s=0.1))
    limits = Limits(idle_timeout_s=0.5)
    async with (
        upstream.running(),
        relay_to(upstream.port, limits) as rig,
        rig.session.post(rig.url + "/", data=b"{}") as response,
    ):
        assert (await response.read()).endswith(b"[DONE]\n\n")


async def test_an_engine_that_falls_silent_in_mid_stream_cuts_the_client() -> None:
    async def script(talk: Conversation) -> None:
        await talk.send(SSE_HEAD)
        await talk.chunk(b"data: 1\n\n")
        await talk.reader.readexactly(1)

    upstream = RawUpstream(script)
    limits = Limits(idle_timeout_s=0.2)
    async with upstream.running(), relay_to(upstream.port, limits) as rig:
        got = await rig.raw(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        assert got.endswith(b"data: 1\n\n\r\n")
        assert (await rig.notes.last()).outcome is Outcome.ENGINE_GONE


async def test_one_more_than_the_exchanges_in_flight_is_503() -> None:
    more = asyncio.Event()

    async def script(talk: Conversation) -> None:
        await more.wait()
        await talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    upstream = RawUpstream(script)
    async with (
        upstream.running(),
        relay_to(upstream.port, Limits(max_in_flight=3)) as rig,
        asyncio.TaskGroup() as tg,
    ):

        async def post() -> int:
            async with rig.session.post(rig.url + "/", data=b"{}") as response:
                return response.status

        held = [tg.create_task(post()) for _ in range(3)]
        await until(lambda: rig.relay.in_flight == 3)
        assert await post() == 503
        more.set()
    assert [task.result() for task in held] == [200, 200, 200]


async def test_health_says_why_the_engine_is_not_ready() -> None:
    async with relay_to(1) as rig:
        async with rig.session.get(rig.url + "/health") as response:
            assert response.status == 200
        rig.notes.not_ready = "the engine is loading"
        async with rig.session.get(rig.url + "/health") as response:
            assert response.status == 503
            assert response.headers["content-type"] == "application/json"
            assert (await response.json())["reason"] == "the engine is loading"
        assert rig.notes.over == []


async def test_unreadable_usage_is_counted_by_reason_and_never_an_error() -> None:
    body = gzip.compress(json.dumps({"usage": USAGE}).encode())
    fields = b"Content-Type: application/json\r\nContent-Encoding: gzip\r\n"
    upstream = RawUpstream(answer(body, fields=fields))
    async with upstream.running(), relay_to(upstream.port) as rig:
        async with rig.session.get(rig.url + "/") as response:
            assert await response.read() == body
        ended = await rig.notes.last()
    assert (ended.usage, ended.usage_unknown) == (Usage(), Unknown.COMPRESSED)


async def test_a_failure_of_our_own_cuts_that_request_and_no_other() -> None:
    upstream = RawUpstream(sse([b"1"]))
    async with upstream.running(), relay_to(upstream.port) as rig:

        def fail(_decision: str, _ttft_s: float) -> None:
            raise RuntimeError("a bug")

        rig.notes.first_token = fail
        with pytest.raises(aiohttp.ClientPayloadError):
            async with rig.session.post(rig.url + "/", data=b"{}", headers=DECISION) as response:
                await response.read()
        assert (await rig.notes.last()).outcome is Outcome.ENGINE_ERROR
        async with rig.session.post(rig.url + "/", data=b"{}") as response:
            assert (await response.read()).endswith(b"[DONE]\n\n")
        assert rig.relay.in_flight == 0


async def test_a_port_that_is_taken_is_said_at_once() -> None:
    async with relay_to(1) as rig:
        second = relay_for(1, rig.notes, Limits(), port=rig.port)
        with pytest.raises(OSError, match="address"):
            await second.start()
