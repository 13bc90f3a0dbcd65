"""Faults of plain proxying (groups A and D), each as an operator met it."""

import asyncio
import gzip
import json
import socket
import time

import aiohttp
import pytest

from epp.bodies.usage import Unknown, Usage
from sidecar.proxy import Limits, Outcome
from tests.fakes.relays import Rig, relay_to
from tests.fakes.sidecars import LogReader, quick_settings, running_sidecar
from tests.fakes.upstreams import Conversation, RawUpstream, answer
from tests.fakes.waiting import until
from tests.timing import scaled

pytestmark = pytest.mark.usefixtures("each_relay")

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 64},
}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


async def test_A05_the_engines_transfer_encoding_is_never_copied() -> None:
    """Protected by `headers.for_client`, which drops hop-by-hop fields."""
    events = [b"data: %d\n\n" % n for n in range(500)]

    async def script(talk: Conversation) -> None:
        await talk.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n"
            b"Trailer: X\r\nUpgrade: h2c\r\n\r\n"
        )
        for event in events:
            await talk.chunk(event)
        await talk.send(b"0\r\n\r\n")

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        got = await rig.raw(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with rig.session.get(rig.url + "/") as response:
            assert await response.read() == b"".join(events)
    head = got.partition(b"\r\n\r\n")[0].lower()
    assert head.count(b"transfer-encoding: chunked") == 1, "the relay's own framing only"
    for name in (b"keep-alive:", b"proxy-authenticate:", b"trailer:", b"upgrade:"):
        assert name not in head


@pytest.mark.parametrize("stream", [False, True])
async def test_A15_a_compressed_answer_passes_untouched_and_its_usage_is_unknown(
    stream: bool,
) -> None:
    """Protected by `ResponseWatch.__init__` (the coding) and `auto_decompress=False`.

    The engine is asked for no coding; this one does not care.
    """
    text = json.dumps({"usage": USAGE}).encode()
    body = gzip.compress(b"data: " + text + b"\n\n" if stream else text)
    kind = b"text/event-stream" if stream else b"application/json"
    upstream = RawUpstream(
        answer(body, fields=b"Content-Type: " + kind + b"\r\nContent-Encoding: gzip\r\n")
    )
    fields = {"Accept-Encoding": "gzip"}
    async with upstream.running(), relay_to(upstream.port) as rig:
        async with rig.session.get(rig.url + "/", headers=fields) as response:
            assert response.headers["content-encoding"] == "gzip"
            assert await response.read() == body
        ended = await rig.notes.last()
    assert upstream.received[0].values(b"accept-encoding") == [b"identity"]
    assert (ended.usage, ended.usage_unknown) == (Usage(), Unknown.COMPRESSED)


async def test_A15_a_compressed_request_passes_untouched() -> None:
    """Protected by `auto_decompress=False` of the server side."""
    body = gzip.compress(b'{"prompt": "hi"}')
    upstream = RawUpstream(answer())
    async with upstream.running(), relay_to(upstream.port) as rig:
        fields = {"Content-Encoding": "gzip"}
        async with rig.session.post(rig.url + "/", data=body, headers=fields) as response:
            assert response.status == 200
    assert upstream.received[0].body == body
    assert upstream.received[0].values(b"content-encoding") == [b"gzip"]


@pytest.mark.parametrize(
    ("method", "status", "fields", "body"),
    [
        ("GET", b"204 No Content", b"", b""),
        ("GET", b"304 Not Modified", b'ETag: "x"\r\nContent-Length: 500\r\n', b""),
        ("GET", b"200 OK", b"Content-Length: 0\r\n", b""),
        ("HEAD", b"200 OK", b"Content-Length: 500\r\n", b""),
        ("HEAD", b"200 OK", b"Transfer-Encoding: chunked\r\n", b""),
        ("GET", b"302 Found", b"Location: /x\r\nContent-Length: 0\r\n", b""),
    ],
)
async def test_A24_answers_that_end_at_the_headers_end(
    method: str, status: bytes, fields: bytes, body: bytes
) -> None:
    """Protected by `_pass_on`, which ends the reply when the engine's body is over."""
    upstream = RawUpstream(answer(body, status=status, fields=fields, length=False))
    async with upstream.running(), relay_to(upstream.port) as rig:
        for _ in range(100):
            async with rig.session.request(
                method, rig.url + "/", allow_redirects=False
            ) as response:
                assert response.status == int(status[:3])
                assert await response.read() == b""
        assert rig.relay.in_flight == 0
        assert len(rig.notes.over) == 100
    assert upstream.connections == 1
    if method == "HEAD" and b"500" in fields:
        assert response.headers["content-length"] == "500"


async def test_D15_an_idle_connection_that_the_engine_closed_costs_no_request() -> None:
    """Protected by `Upstream.send`, which repeats once on a fresh connection."""
    upstream = RawUpstream(answer(), close_after=1)

    async def script(talk: Conversation) -> None:
        await answer()(talk)
        await asyncio.sleep(0.005)  # the relay has the connection back before it is closed

    upstream.script = script
    async with upstream.running(), relay_to(upstream.port) as rig:
        for n in range(60):
            body = b'{"n": %d}' % n
            async with rig.session.post(rig.url + "/", data=body) as response:
                assert response.status == 200
            await asyncio.sleep(0.001 * (n % 10))
    assert len(upstream.received) == 60


async def test_D15_a_reset_before_any_byte_is_repeated_once_with_the_whole_body() -> None:
    """Protected by `Upload.pieces`, which says the body again from its beginning."""
    body = b"x" * 200_000

    async def script(talk: Conversation) -> None:
        if talk.request.connection == 1 and len(upstream.received) == 2:
            talk.reset()
            return
        await answer()(talk)

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        for _ in range(2):
            async with rig.session.post(rig.url + "/", data=body) as response:
                assert response.status == 200
        assert rig.relay.repeats == 1
    assert [len(request.body) for request in upstream.received] == [200_000] * 3


async def test_D16_three_hundred_streams_begin_at_once() -> None:
    """Protected by `limit=0` of the connector and `total=None` of the timeout."""
    more = asyncio.Event()
    begun = 0

    async def script(talk: Conversation) -> None:
        nonlocal begun
        await talk.send(SSE_HEAD)
        await talk.chunk(b"data: 1\n\n")
        begun += 1
        await more.wait()
        await talk.send(b"0\r\n\r\n")

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig, asyncio.TaskGroup() as tg:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def stream() -> bytes:
                async with session.post(rig.url + "/", data=b"{}") as response:
                    return await response.read()

            began = time.monotonic()
            tasks = [tg.create_task(stream()) for _ in range(300)]
            await until(lambda: begun == 300)
            assert time.monotonic() - began < scaled(3)
            more.set()
            await asyncio.wait(tasks)
    assert {task.result() for task in tasks} == {b"data: 1\n\n"}


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_D17_events_cut_or_joined_by_the_engine_arrive_byte_for_byte(size: int) -> None:
    """Protected by `_pass_on`, which hands on what came and watches a copy."""
    body = b"".join(b'data: {"n": %d}\n\n' % n for n in range(60))
    body += b"data: " + json.dumps({"usage": USAGE}).encode() + b"\n\n"
    if size == 10_000:
        body = b"data: " + b"x" * 1_000_000 + b"\n\n" + body

    async def script(talk: Conversation) -> None:
        await talk.send(SSE_HEAD)
        for start in range(0, len(body), size):
            await talk.chunk(body[start : start + size])
        await talk.send(b"0\r\n\r\n")

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        async with rig.session.post(rig.url + "/", data=b"{}") as response:
            assert await response.read() == body
        assert (await rig.notes.last()).usage == Usage(100, 64, 20)


async def test_D18_end_to_end_headers_pass_both_ways_and_none_is_doubled() -> None:
    """Protected by `headers.for_engine`, `headers.for_client` and `_Incoming._prepare_hook`."""
    upstream = RawUpstream(
        answer(
            b"data: 1\n\n",
            fields=b"Content-Type: text/event-stream\r\nServer: uvicorn\r\nX-Custom: 1\r\n"
            b"Date: Mon, 01 Jan 2024 00:00:00 GMT\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
            b"Connection: close\r\n",
        )
    )
    async with upstream.running(), relay_to(upstream.port) as rig:
        fields = [("X-Gateway-Destination-Endpoint", "10.0.0.1:80"), ("X-A", "1"), ("X-A", "2")]
        async with rig.session.get(rig.url + "/", headers=fields) as response:
            names = [name.lower() for name in response.headers]
            assert response.headers.getall("set-cookie") == ["a", "b"]
            assert response.headers["content-type"] == "text/event-stream"
            assert response.headers["server"] == "uvicorn"
    assert names.count("date") == names.count("server") == names.count("x-custom") == 1
    assert "connection" not in names
    assert upstream.received[0].values(b"x-a") == [b"1", b"2"]
    assert upstream.received[0].values(b"x-gateway-destination-endpoint") == []


async def test_D19_the_clients_own_key_reaches_the_engine() -> None:
    """Protected by `headers.for_engine`, which drops only what it names."""

    async def script(talk: Conversation) -> None:
        known = talk.request.values(b"authorization") == [b"Bearer client-key"]
        await answer(status=b"200 OK" if known else b"401 Unauthorized")(talk)

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        fields = {"Authorization": "Bearer client-key"}
        async with rig.session.post(rig.url + "/", data=b"{}", headers=fields) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    "target",
    [
        b"/sleep?level=2&tags=weights",
        b"/a%2Fb",
        b"/a%20b+c",
        b"//v1//x",
        b"/v1/../metrics",
        b"/v1/./x",
        b"/x?q=a+b%20c&&=&q",
        b"/x?a=b?c=d",
        b"/%zz?%",
        b"//evil.example/x",
        b"/@evil.example:80/x",
        b"/:80",
    ],
)
async def test_D20_the_request_target_passes_byte_for_byte(target: bytes) -> None:
    """Protected by `Upstream._url`, which builds the URL as it is, on the engine's own host."""
    upstream = RawUpstream(answer())
    async with upstream.running(), relay_to(upstream.port) as rig:
        await rig.raw(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n", until_close=False)
    assert upstream.received[0].line == b"GET " + target + b" HTTP/1.1"


@pytest.mark.parametrize(
    "target",
    [b"http://evil.example/x", b"@evil.example/", b"*", b"evil.example:80", b"/\xc3\xa9", b"/\xff"],
)
async def test_D20_a_target_that_is_no_path_is_refused_and_never_mangled(target: bytes) -> None:
    """Protected by `AiohttpRelay._check` (it begins with a slash); raw non-ASCII by the parser."""
    upstream = RawUpstream(answer())
    async with upstream.running(), relay_to(upstream.port) as rig:
        got = await rig.raw(b"OPTIONS " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert upstream.received == []


async def test_D21_trace_headers_pass_and_none_is_made_up() -> None:
    """Protected by `headers.for_engine`."""
    upstream = RawUpstream(answer())
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "x=1"}
    async with upstream.running(), relay_to(upstream.port) as rig:
        for fields in (trace, {}):
            async with rig.session.get(rig.url + "/", headers=fields) as response:
                assert response.status == 200
    first, second = upstream.received
    assert first.values(b"traceparent") == [trace["traceparent"].encode()]
    assert first.values(b"tracestate") == [b"x=1"]
    assert second.values(b"traceparent") == second.values(b"tracestate") == []


@pytest.mark.parametrize("ending", ["reset", "close", "bad-chunk"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_D22_an_engine_that_dies_in_mid_stream_is_never_a_clean_end(
    ending: str, version: bytes
) -> None:
    """Protected by `_cut`: no final chunk, and a reset where the end is the connection's."""

    async def script(talk: Conversation) -> None:
        await talk.send(SSE_HEAD)
        for n in range(5):
            await talk.chunk(b"data: %d\n\n" % n)
        await asyncio.sleep(0.05)
        if ending == "reset":
            talk.reset()
        elif ending == "bad-chunk":
            await talk.send(b"zz\r\n")
        else:
            talk.writer.close()

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        reader, writer = await rig.connect()
        writer.write(POST.replace(b"HTTP/1.1", b"HTTP/" + version))
        got = b""
        reset = False
        try:
            while piece := await reader.read(65536):
                got += piece
        except ConnectionResetError:
            reset = True
        writer.close()
        ended = await rig.notes.last()
    assert b"data: 4\n\n" in got
    assert b"[DONE]" not in got
    assert reset if version == b"1.0" else not got.endswith(b"0\r\n\r\n")
    assert (ended.outcome, ended.status) == (Outcome.ENGINE_GONE, 200)
    assert rig.notes.suspect == 1


async def test_D22_a_body_shorter_than_its_length_cuts_the_connection() -> None:
    """Protected by `_cut`; the client sees fewer bytes than it was promised."""

    async def script(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        talk.writer.close()

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        with pytest.raises(aiohttp.ClientPayloadError):
            async with rig.session.get(rig.url + "/") as response:
                await response.read()


async def test_D23_an_early_refusal_reaches_a_client_that_still_uploads() -> None:
    """Protected by `EngineConnection`, which reads while it writes."""

    async def script(talk: Conversation) -> None:
        await answer(b"{}", status=b"413 Payload Too Large", fields=b"Connection: close\r\n")(talk)
        await asyncio.sleep(0.2)  # uvicorn, too, leaves the client a moment
        talk.writer.close()

    upstream = RawUpstream(script, read_body=False, close_after=1)
    async with upstream.running(), relay_to(upstream.port) as rig:

        async def upload():
            for _ in range(200):
                yield b"x" * 100_000
                await asyncio.sleep(0)

        async with rig.session.post(rig.url + "/", data=upload()) as response:
            assert response.status == 413
        ended = await rig.notes.last()
    assert (ended.outcome, ended.status) == (Outcome.ENGINE_ERROR, 413)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
async def test_D24_the_engines_own_errors_pass_unchanged(status: int) -> None:
    """Protected by `Passage`: only a missing answer is replaced."""
    body = json.dumps({"error": {"message": "é", "type": "t", "code": status}}).encode()
    upstream = RawUpstream(
        answer(
            body,
            status=b"%d Some Reason" % status,
            fields=b"Content-Type: application/json\r\nRetry-After: 7\r\n",
        )
    )
    async with upstream.running(), relay_to(upstream.port) as rig:
        fields = {"x-epp-decision-id": "d"}
        async with rig.session.post(rig.url + "/", data=b"{}", headers=fields) as response:
            assert (response.status, response.reason) == (status, "Some Reason")
            assert response.headers["content-type"] == "application/json"
            assert response.headers["retry-after"] == "7"
            assert await response.read() == body
        ended = await rig.notes.last()
    assert (ended.outcome, ended.status) == (Outcome.ENGINE_ERROR, status)
    assert rig.notes.first == [], "an error is no first token"


async def test_D25_readiness_follows_the_engine_and_liveness_does_not() -> None:
    """Protected by `Reporter.not_ready`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    health = b"503 Service Unavailable"

    async def script(talk: Conversation) -> None:
        await answer(b"", status=health)(talk)

    async with LogReader().running() as log:
        settings = quick_settings(port, log.server.port, model="m", health_interval_s=0.02)
        async with running_sidecar(settings) as sidecar, aiohttp.ClientSession() as session:

            async def both() -> tuple[int, int]:
                proxy = f"http://127.0.0.1:{sidecar.port}/health"
                own = f"http://127.0.0.1:{sidecar.metrics_port}/healthz"
                async with session.get(proxy) as ready, session.get(own) as alive:
                    return ready.status, alive.status

            assert await both() == (503, 200)
            async with RawUpstream(script).running(port):
                await asyncio.sleep(0.2)
                assert await both() == (503, 200)
                health = b"200 OK"
                await until(lambda: sidecar.engine.ready)
                assert await both() == (200, 200)
            await until(lambda: not sidecar.engine.ready)
            assert await both() == (503, 200)


async def test_D26_twenty_streams_survive_the_sidecars_shutdown() -> None:
    """Protected by `Drain.run`, which waits for what is in flight."""

    async def script(talk: Conversation) -> None:
        if talk.request.line.startswith(b"GET"):
            await answer(b"")(talk)
            return
        await talk.send(SSE_HEAD)
        for n in range(20):
            await talk.chunk(b"data: %d\n\n" % n)
            await asyncio.sleep(0.08)  # longer than the server's own last moment
        await talk.chunk(b"data: [DONE]\n\n")
        await talk.send(b"0\r\n\r\n")

    upstream = RawUpstream(script)
    async with upstream.running(), LogReader().running() as log:
        settings = quick_settings(upstream.port, log.server.port, model="m")
        leave = running_sidecar(settings)
        sidecar = await leave.__aenter__()
        url = f"http://127.0.0.1:{sidecar.port}/"
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tg:

            async def stream() -> bytes:
                async with session.post(url, data=b"{}") as response:
                    return await response.read()

            streams = [tg.create_task(stream()) for _ in range(20)]
            await until(lambda: sidecar.relay.in_flight == 20)
            await leave.__aexit__(None, None, None)
    assert all(stream.result().endswith(b"data: [DONE]\n\n") for stream in streams)


async def test_D29_aborted_requests_leave_the_others_alone() -> None:
    """Protected by `Exchange`: whoever leaves is no error, and each closes its own answer only."""

    async def script(talk: Conversation) -> None:
        await talk.send(SSE_HEAD)
        for n in range(20):
            await talk.chunk(b"data: %d\n\n" % n)
            await asyncio.sleep(0.01)
        await talk.send(b"0\r\n\r\n")

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig, asyncio.TaskGroup() as tg:

        async def stream(number: int) -> bytes:
            async with rig.session.post(rig.url + "/", data=b"{}") as response:
                if number % 2:
                    await response.content.readany()
                    response.close()
                    return b""
                return await response.read()

        streams = [tg.create_task(stream(number)) for number in range(50)]
        await asyncio.wait(streams)
        await until(lambda: len(rig.notes.over) == 50)
    whole = b"".join(b"data: %d\n\n" % n for n in range(20))
    assert all(task.result() == whole for task in streams[::2])
    outcomes = [ended.outcome for ended in rig.notes.over]
    assert outcomes.count(Outcome.CLIENT_GONE) == 25
    assert outcomes.count(Outcome.OK) == 25


async def test_D15_a_large_upload_is_not_kept_and_not_repeated() -> None:
    """Protected by `Upload._keep`; of a form, nothing beyond `replay_bytes` is ever held."""

    async def script(talk: Conversation) -> None:
        if len(upstream.received) == 2:
            talk.reset()
            return
        await answer()(talk)

    upstream = RawUpstream(script)
    limits = Limits(replay_bytes=1000)
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    async with upstream.running(), relay_to(upstream.port, limits) as rig:
        for status in (200, 502):
            body = b"x" * 1001
            async with rig.session.post(rig.url + "/", data=body, headers=form) as response:
                assert response.status == status
    assert len(upstream.received) == 2


async def one_by_one(events: list[bytes], rig: Rig, upstream: RawUpstream) -> bytes:
    """What the client gets of a stream whose next event comes when it has read the last."""
    read: asyncio.Queue[None] = asyncio.Queue()

    async def script(talk: Conversation) -> None:
        await talk.send(SSE_HEAD)
        for event in events:
            await talk.chunk(event)
            await read.get()
        await talk.send(b"0\r\n\r\n")

    upstream.script = script
    got = b""
    async with asyncio.timeout(scaled(20)), rig.session.get(rig.url + "/") as response:
        async for piece in response.content.iter_any():
            got += piece
            read.put_nowait(None)
    return got


async def test_D13_an_event_that_names_parameters_does_not_go_by_unseen() -> None:
    """Protected by `passing.say_nothing`. Red when chunks go by without a look for the name."""
    plain = [b'data: {"choices":[{"text":"%d"}]}\n\n' % n for n in range(5)]
    naming = b'data: {"kv_transfer_params":{"remote_host":"10.0.0.1"},"choices":[]}\n\n'
    upstream = RawUpstream(answer())
    async with upstream.running(), relay_to(upstream.port) as rig:
        for _ in range(2):  # on a new connection to the engine, and on a spare one
            got = await one_by_one([*plain, naming, *plain], rig, upstream)
            assert got == b"".join((*plain, b'data: {"choices":[]}\n\n', *plain))


async def test_D14_usage_is_found_behind_events_that_went_by() -> None:
    """Protected by `passing.say_nothing`. Red when chunks go by without a look for usage."""
    event = b'data: {"choices":[{"text":"x"}]}\n\n'
    usage = b'data: {"choices":[],"usage":' + json.dumps(USAGE).encode() + b"}\n\n"
    events = [*[event] * 5, usage, b"data: [DONE]\n\n"]
    upstream = RawUpstream(answer())
    async with upstream.running(), relay_to(upstream.port) as rig:
        assert await one_by_one(events, rig, upstream) == b"".join(events)
        assert (await rig.notes.last()).usage == Usage(100, 64, 20)


async def test_D15_a_new_connection_that_dies_is_no_reason_to_ask_again(each_relay: str) -> None:
    """Protected by `Direct.fail`. Red when a silent end is a dead spare one whatever it was."""

    async def script(talk: Conversation) -> None:
        talk.reset()

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        async with rig.session.post(rig.url + "/v1/completions", data=b"{}") as response:
            assert response.status == 502
        assert len(upstream.received) == 1
        assert rig.relay.repeats == 0
