"""Faults of hostile clients and peers at the sidecar (group G), each as an operator met it."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.fakes.relays import relay_to
from tests.fakes.split_pool import COMPLETIONS, prompt, split_pool
from tests.fakes.upstreams import Conversation, RawUpstream, answer
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("each_relay")

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
NEXT = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
JSON = b"Content-Type: application/json\r\n"


@pytest.mark.parametrize(
    "target",
    [
        "169.254.169.254:80",
        "127.0.0.1:{forbidden}",
        "127.0.0.2:{forbidden}",
        "[::ffff:127.0.0.1]:{forbidden}",
        "localhost:{forbidden}",
        "2130706433:{forbidden}",
        "0x7f000001:{forbidden}",
        "0177.0.0.1:{forbidden}",
        "127.1:{forbidden}",
        "{member}@127.0.0.1:{forbidden}",
        "user@{member}",
        "{member}/../127.0.0.1:{forbidden}",
        "{member}/path",
        "{member}#@127.0.0.1:{forbidden}",
        "http://127.0.0.1:{forbidden}",
        "localhost:{port}",
        "localhost.:{port}",
        "0x7f000001:{port}",
        "127.0.0.1:0{port}9",
        "127.0.0.1:22",
        "127.0.0.1:{forbidden},127.0.0.1:{forbidden}",
    ],
)
async def test_G01_a_prompt_goes_to_members_of_the_pool_and_nowhere_else(
    target: str, tmp_path: Path
) -> None:
    """Protected by `Guard.allowed`, which knows members by address and port, and by
    `targets.parse`, which reads no other spelling; red when the guard lets strangers through.
    """
    calls: list[object] = []
    forbidden = await asyncio.start_server(lambda *call: calls.append(call), "127.0.0.1", 0)
    async with forbidden, split_pool(tmp_path) as pool:
        text = target.format(
            forbidden=forbidden.sockets[0].getsockname()[1],
            member=pool.prefill.address,
            port=pool.prefill.sidecar.port,
        )
        body = {"prompt": prompt("canary"), "max_tokens": 4}
        status, _ = await pool.post(body, targets=text)
        assert status == 200, "the local engine computes the prompt"
        assert calls == []
        assert (pool.prefill.bodies, len(pool.decode.bodies)) == ([], 1)
        await pool.decode.ended("whole")
        assert pool.decode.metric("prefill_targets_refused_total") >= 1


async def test_G01_no_other_header_makes_the_sidecar_call_anybody(tmp_path: Path) -> None:
    """Protected by `headers.for_engine`, which keeps routing headers from the engine; red when
    the engine gets to see one. Nothing here reads any but the prefillers'."""
    calls: list[object] = []
    forbidden = await asyncio.start_server(lambda *call: calls.append(call), "127.0.0.1", 0)
    at = f"127.0.0.1:{forbidden.sockets[0].getsockname()[1]}"
    names = (
        "x-encoder-hosts-ports",
        "x-data-parallel-host-port",
        "x-kv-cache-source-host-port",
        "x-gateway-destination-endpoint",
        "X-Prefiller-Host-Port",
    )
    upstream = RawUpstream(answer())
    fields = dict.fromkeys(names, at)
    async with forbidden, upstream.running(), relay_to(upstream.port) as rig:
        data = json.dumps({"model": "m", "prompt": "hi"})
        async with rig.session.post(rig.url + COMPLETIONS, data=data, headers=fields) as response:
            assert response.status == 200
    assert calls == []
    sent = {name for name, _ in upstream.received[0].fields}
    assert not sent & {name.lower().encode() for name in names}


AMBIGUOUS = {
    "length-and-coding": POST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + NEXT,
    "coding-and-length": CHUNKED + b"Content-Length: 99\r\n\r\n0\r\n\r\n" + NEXT,
    "two-lengths": POST + b"Content-Length: 2\r\nContent-Length: 60\r\n\r\n{}" + NEXT,
    "twice-the-length": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}" + NEXT,
    "unknown-coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + NEXT,
    "coding-behind": POST
    + b"Transfer-Encoding: chunked, identity\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    + NEXT,
    "two-codings": CHUNKED + b"Transfer-Encoding: identity\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + NEXT,
    "space-before-colon": POST + b"Transfer-Encoding : chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + NEXT,
    "control-in-coding": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + NEXT,
    "length-in-trailer": CHUNKED
    + b"\r\n1\r\n{\r\n1\r\n}\r\n0\r\nContent-Length: 99\r\n\r\n"
    + NEXT,
    "lines-end-in-lf": POST.replace(b"\r", b"") + b"Content-Length: 2\n\n{}" + NEXT,
    "a-line-ends-in-lf": POST + b"Content-Length: 2\nX: y\r\n\r\n{}" + NEXT,
    "a-line-ends-in-cr": POST + b"Content-Length: 2\rX: y\r\n\r\n{}" + NEXT,
    "lf-in-extension": CHUNKED + b"\r\n2;a\n{}\r\n0\r\n\r\n" + NEXT,
    "hexadecimal-chunk": CHUNKED + b"\r\n0x2\r\n{}\r\n0\r\n\r\n" + NEXT,
    "signed-chunk": CHUNKED + b"\r\n+2\r\n{}\r\n0\r\n\r\n" + NEXT,
    "chunk-too-short": CHUNKED + b"\r\n2\r\n{}x\r\n0\r\n\r\n" + NEXT,
    "chunk-of-72-bits": CHUNKED + b"\r\n" + b"f" * 18 + b"\r\n{}\r\n0\r\n\r\n" + NEXT,
    "signed-length": POST + b"Content-Length: +5\r\n\r\n{    " + NEXT,
    "list-of-lengths": POST + b"Content-Length: 5,5\r\n\r\n{    " + NEXT,
    "negative-length": POST + b"Content-Length: -1\r\n\r\n" + NEXT,
    "empty-length": POST + b"Content-Length: \r\n\r\n" + NEXT,
    "folded-line": POST + b"Content-Length: 2\r\nX: a\r\n b\r\n\r\n{}" + NEXT,
    "folded-coding": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + NEXT,
    "coding-of-http-1.0": CHUNKED.replace(b"1.1", b"1.0") + b"\r\n2\r\n{}\r\n0\r\n\r\n" + NEXT,
    "nul": POST + b"X: a\0b\r\nContent-Length: 2\r\n\r\n{}" + NEXT,
    "two-hosts": POST + b"Host: y\r\nContent-Length: 2\r\n\r\n{}" + NEXT,
}


@pytest.mark.parametrize("case", AMBIGUOUS)
async def test_G04_what_two_readers_would_read_differently_is_refused(case: str) -> None:
    """Protected by the strict parser of `Server`, and by `refusals.UNREADABLE`, which closes; red
    when the connection goes on, or when the answer quotes the request."""
    upstream = RawUpstream(answer())
    async with upstream.running(), relay_to(upstream.port) as rig:
        head, _, body = (await rig.raw(AMBIGUOUS[case])).partition(b"\r\n\r\n")
        assert head.split(b" ")[1] == b"400"
        code = json.loads(body)["error"]["code"]  # and no other answer behind it
        assert code in {"bad-request", "bad-body"}
        assert b"smuggled" not in body
    assert upstream.received == []


@pytest.mark.parametrize(
    "request_",
    [
        CHUNKED + b"\r\n2;a=b\r\n{}\r\n0\r\n\r\n",
        CHUNKED + b"\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        CHUNKED + b"Connection: transfer-encoding, content-length\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        POST + b"Connection: content-length, host\r\nContent-Length: 2\r\n\r\n{}",
    ],
    ids=["extension", "pieces", "connection-names-coding", "connection-names-length"],
)
async def test_G04_the_engine_gets_one_body_in_one_framing(request_: bytes) -> None:
    """Protected by `headers.for_engine`, which drops the client's framing, and `with_length`;
    red when both lengths and codings arrive."""
    upstream = RawUpstream(answer())
    async with upstream.running(), relay_to(upstream.port) as rig:
        reader, writer = await rig.connect()
        writer.write(request_)
        async with asyncio.timeout(5):
            got = await reader.readuntil(b"{}")
        writer.close()
    assert got.startswith(b"HTTP/1.1 200 ")
    only = upstream.received[0]
    assert only.values(b"transfer-encoding") == []
    assert only.values(b"content-length") == [b"2"]
    assert (len(only.values(b"host")), only.body, len(upstream.received)) == (1, b"{}", 1)


@pytest.mark.parametrize("length", [2**32 - 1, 2**62])
async def test_G16_a_length_that_a_client_declares_is_refused_before_anything_is_kept(
    length: int,
) -> None:
    """Protected by `AiohttpRelay._check`, which looks at the declared length; red when the relay
    waits for such a body."""
    upstream = RawUpstream(answer())
    async with upstream.running(), relay_to(upstream.port) as rig:
        reader, writer = await rig.connect()
        writer.write(POST + b"Content-Length: %d\r\n\r\n\0\xff\xff\xff\xff" % length)
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()
        await until(lambda: not rig.relay.in_flight)
        assert rig.relay.held_bytes == 0
        async with rig.session.post(rig.url + COMPLETIONS, data=b"{}") as response:
            assert response.status == 200, "healthy afterwards"
    assert len(upstream.received) == 1


async def test_G16_a_length_that_an_engine_declares_is_not_waited_for() -> None:
    """Protected by `Passage._held`, which holds back short answers only; red when the client gets
    nothing of an answer whose declared length never comes."""

    async def script(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 200 OK\r\n" + JSON + b"Content-Length: %d\r\n\r\n" % 2**40)
        await talk.send(b'{"text":"')
        await talk.reader.read()

    upstream = RawUpstream(script)
    async with upstream.running(), relay_to(upstream.port) as rig:
        reader, writer = await rig.connect()
        writer.write(POST + b"Content-Length: 2\r\n\r\n{}")
        async with asyncio.timeout(5):
            got = await reader.readuntil(b'{"text":"')
        assert b"content-length" not in got.lower(), "a part is never taken for the whole"
        writer.close()
        await until(lambda: not rig.relay.in_flight)
