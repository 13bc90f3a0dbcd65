"""Field faults at the gateway's door: its filter chain, what it lets in, and how it says no."""

import asyncio
import hashlib
import io
import json
import random
import re
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from epp import protocol
from epp.errors import BadRequest, NoEndpoint
from epp.sim.benches.measure import quantile
from epp.sim.gateway.envoy import EnvoySettings
from epp.sim.gateway.routes import API_PATHS, EVERY_PATH
from tests.conformance.shipped import SHIPPED, Shipped
from tests.fakes.backend import raw_backend
from tests.fakes.director import route
from tests.fakes.picked_gateway import Rig, rig
from tests.fakes.waiting import until
from tests.timing import scaled

each_file = pytest.mark.parametrize("shipped", SHIPPED, ids=str)


def as_shipped(directory: Path, shipped: Shipped, **changes: object) -> object:
    """A gateway like one of our files, whose paths are the API's."""

    def settings(each: EnvoySettings) -> EnvoySettings:
        values = {"api_paths": API_PATHS, "response_trailers": shipped.trailers, **changes}
        return replace(each, **values)

    return rig(directory, shipped.shape, settings=settings)


@each_file
def test_A06_a_chain_holds_one_streaming_filter_and_no_mode_override(shipped: Shipped) -> None:
    """Protected by the files in manifests/envoy; red with a second filter, or when a route or the
    filter lets the mode be changed."""
    (only,) = shipped.ext_procs
    assert not only.get("allow_mode_override", False)
    assert "mode_override" not in json.dumps(only).replace("allow_mode_override", "")
    routes = json.dumps(shipped.manager["route_config"])
    assert "processing_mode" not in routes
    assert "grpc_service" not in routes


@each_file
async def test_A06_a_body_of_300_kilobytes_passes_whole(tmp_path: Path, shipped: Shipped) -> None:
    """Protected by `replies.pieces` and, where the gateway buffers, by its limit; red when either
    drops or refuses what is longer than one piece."""
    body = random.Random(6).randbytes(300_000)
    async with (
        as_shipped(tmp_path, shipped) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        async with client.post("/v1/completions", data=io.BytesIO(body)) as response:
            assert response.status == 200
        (seen,) = here.backends[1].seen
        assert hashlib.sha256(seen.body).digest() == hashlib.sha256(body).digest()


@each_file
def test_A07_the_trailer_mode_of_each_file_is_pinned(shipped: Shipped) -> None:
    """Protected by the files in manifests/envoy; red when one of them changes its choice."""
    (only,) = shipped.ext_procs
    assert only["processing_mode"] == {
        "request_header_mode": "SEND",
        "request_body_mode": shipped.request_body,
        "request_trailer_mode": shipped.request_trailers,
        "response_header_mode": "SEND",
        "response_body_mode": shipped.response_body,
        "response_trailer_mode": shipped.response_trailers,
    }


@each_file
async def test_A07_an_answer_with_trailers_comes_whole(tmp_path: Path, shipped: Shipped) -> None:
    """Protected by `processing_mode` in sim/gateway/modes: Envoy refuses streamed bodies without
    their trailers; red (no Envoy) with SKIP there."""
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-t\r\n\r\n"
    answer += b"5\r\nhello\r\n0\r\nx-t: yes\r\n\r\n"
    async with (
        raw_backend(answer) as (address, _),
        as_shipped(tmp_path, shipped, endpoints=[address]) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = lambda _: route(address)
        begun = time.perf_counter()
        async with client.post("/v1/completions", data=b"{}") as response:
            assert (response.status, await response.read()) == (200, b"hello")
        assert time.perf_counter() - begun < scaled(2)


@each_file
async def test_A29_no_reply_is_one_too_many_or_too_early(tmp_path: Path, shipped: Shipped) -> None:
    """Protected by the order in `Stream._route_replies` and by who is told to go on with headers
    alone; red when every mode is."""
    async with (
        as_shipped(tmp_path, shipped) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):

        async def post(path: str, size: int) -> int:
            async with client.post(path, data=io.BytesIO(b"x" * size)) as response:
                await response.read()
                return response.status

        paths = ("/v1/completions", "/v1/models", "/status/503", "/tokenize")
        sizes = (0, 1, protocol.MAX_BODY_PIECE + 1, 1_500_000)
        async with asyncio.TaskGroup() as tasks:
            for path in paths:
                for size in sizes:
                    tasks.create_task(post(path, size))
        for refusal in (BadRequest("no"), NoEndpoint("nobody")):
            here.director.script = lambda _, said=refusal: said
            assert [await post("/v1/completions", size) for size in sizes] == [refusal.status] * 4
        assert await here.gateway.ext_proc("stream_msgs_received") > 0
        assert await here.gateway.ext_proc("spurious_msgs_received") == 0
        assert here.picker.counts.aborted == {}


class Pace(NamedTuple):
    """What was seen of many streams, in seconds."""

    lag: float
    """From an event's sending to its coming (median)."""
    stretched: float
    """How much longer the gaps between two events are where they come (99th percentile)."""

    @property
    def kept(self) -> bool:
        return self.lag < scaled(0.02) and self.stretched < scaled(0.02)


async def pace(
    tmp_path: Path, shipped: Shipped, *, streams: int, events: int, pause_s: float
) -> Pace:
    """Let events pass at a steady pace, and see when they come."""
    sent: list[list[float]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        stream = len(sent)
        sent.append([])
        for number in range(events):
            sent[stream].append(time.perf_counter())
            writer.write(b"data: %d %d\n\n" % (stream, number))
            await writer.drain()
            await asyncio.sleep(pause_s)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    lags: list[float] = []
    came: list[list[float]] = [[] for _ in range(streams)]
    async with (
        server,
        as_shipped(tmp_path, shipped, endpoints=[address]) as here,
        aiohttp.ClientSession(
            here.gateway.url, connector=aiohttp.TCPConnector(limit=streams)
        ) as client,
    ):
        here.director.script = lambda _: route(address)

        async def read(index: int) -> None:
            await asyncio.sleep(pause_s * index / streams)
            async with client.get("/v1/responses/r") as response:
                async for line in response.content:
                    if line.startswith(b"data: "):
                        stream, number = map(int, line[6:].split())
                        came[index].append(time.perf_counter())
                        lags.append(came[index][-1] - sent[stream][number])

        async with asyncio.TaskGroup() as tasks:
            for index in range(streams):
                tasks.create_task(read(index))
    assert [len(times) for times in came] == [events] * streams
    return Pace(quantile(lags, 0.5), longest_gap(came) - longest_gap(sent))


async def paces(
    tmp_path: Path, shipped: Shipped, *, streams: int, events: int, pause_s: float
) -> list[Pace]:
    """Of up to three tries, for a busy machine: both ends and the picker share this process."""
    tries: list[Pace] = []
    while not tries or (len(tries) < 3 and not tries[-1].kept):
        tries.append(await pace(tmp_path, shipped, streams=streams, events=events, pause_s=pause_s))
    return tries


def longest_gap(streams: list[list[float]]) -> float:
    """Between two events of a stream, but for one in a hundred."""
    return quantile([late - soon for times in streams for soon, late in pairwise(times)], 0.99)


@each_file
async def test_A30_events_pass_when_they_come(tmp_path: Path, shipped: Shipped) -> None:
    """Protected by the response body modes in sim/gateway/modes and by `Answer.body`, which answers
    each piece at once; red when a body is collected instead."""
    tries = await paces(tmp_path, shipped, streams=60, events=10, pause_s=0.1)
    assert tries[-1].kept, tries


@pytest.mark.long
@each_file
async def test_A30_events_of_200_streams_pass_when_they_come(
    tmp_path: Path, shipped: Shipped
) -> None:
    """As above, with the streams of the field report; at a pace that one process can serve, which
    is both ends and the picker."""
    tries = await paces(tmp_path, shipped, streams=200, events=20, pause_s=0.4)
    assert tries[-1].kept, tries


FORBIDDEN = (
    "/metrics",
    "/v1/../metrics",
    "//metrics",
    "/v1/%2e%2e/metrics",
    "/v1/models/../../metrics",
    "/v1/models/.%2E/%2e./metrics",
    "/v1/models/..%2f..%2fmetrics",
    "/v1/models\\..\\..\\metrics",
    "/v1/models/%5c..%5c..%5cmetrics",
    "/./metrics",
    "/%6detrics",
    "http://h/metrics",
    "/v1/models;/../metrics",
    "/v1/models%00/../metrics",
    "/V1/models",
    "/v1/modelsx",
    "/sleep",
    "/reset_prefix_cache",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/collective_rpc",
    "/server_info",
    "/abort_requests",
    "/tokenizer_info",
    "/",
    "*",
)
ALLOWED = {
    "/v1/models": "/v1/models",
    "/v1//models": "/v1/models",
    "/v1/models/": "/v1/models/",
    "/v1/models?x=/../metrics": "/v1/models?x=/../metrics",
    "/metrics/../v1/models": "/v1/models",
    "/v1/completions/render": "/v1/completions/render",
    "/v1/models/%252e%252e/metrics": "/v1/models/%252e%252e/metrics",
}


@pytest.mark.parametrize("shipped", SHIPPED[:1], ids=str)
async def test_G11_only_paths_of_the_api_reach_an_engine(tmp_path: Path, shipped: Shipped) -> None:
    """Protected by the list in sim/gateway/routes and the path settings of the bootstrap; red when
    every path passes."""
    async with as_shipped(tmp_path, shipped) as here:
        for method in ("GET", "POST"):
            for path in FORBIDDEN:
                said = await ask(here, path, method=method)
                assert said.split()[1] in (b"404", b"400"), (method, path)
        assert here.picker.counts.started == 0, "the picker is not asked either"
        assert [each.seen for each in here.backends] == [[], []]
        said = await ask(here, "/metrics")
        assert said.split()[1] == b"404"
        assert b"content-type: application/json" in said
        error = json.loads(said.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "path_not_found"
        assert "it serves /v1/chat/completions, " in error["message"]
        for path, arrives in ALLOWED.items():
            assert (await ask(here, path)).split()[1] == b"200", path
            assert here.backends[1].seen[-1].target == arrives


@each_file
async def test_G11_each_shape_refuses_pages_of_the_engine(tmp_path: Path, shipped: Shipped) -> None:
    """Protected as above, where the picker is down and the gateway fails open, too."""
    async with as_shipped(tmp_path, shipped, fail_open=True) as here:
        await here.picker.drain(0)
        await here.gateway.picker_healthy(False)
        assert (await ask(here, "/metrics")).split()[1] == b"404"
        assert (await ask(here, "/sleep", method="POST")).split()[1] == b"404"
        assert [each.seen for each in here.backends] == [[], []]


async def test_G11_a_wider_list_is_one_setting(tmp_path: Path) -> None:
    """Protected by `api_paths`; red when it is not what routes are made of."""
    for paths, status in (((*API_PATHS, "/openai"), b"404"), (EVERY_PATH, b"200")):
        async with as_shipped(tmp_path, SHIPPED[0], api_paths=paths) as here:
            assert (await ask(here, "/openai/v1/completions")).split()[1] == b"200"
            assert (await ask(here, "/metrics")).split()[1] == status


@each_file
async def test_G12_floods_of_headers_get_431_and_never_500(
    tmp_path: Path, shipped: Shipped
) -> None:
    """Protected by the filter that is off without a route (else a request that Envoy cannot take is
    cut without an answer), and by the first mapper in sim/gateway/refusals (else one that leaves no
    room for the picker's headers is a 503)."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    ours = tuple((f"x-our-{number}", "v" * 100) for number in range(5))
    async with (
        raw_backend(answer) as (address, _),
        as_shipped(tmp_path, shipped, endpoints=[address]) as here,
    ):
        here.director.script = lambda _: route(address, set_headers=ours)
        for headers, expected in (
            (numbered(80), b"200"),
            (numbered(99), b"431"),
            (numbered(101), b"431"),
            (numbered(200), b"431"),
            (f"x: {'a' * 50_000}\r\n", b"200"),
            (f"x: {'a' * 61_200}\r\n", b"431"),
            (f"x: {'a' * 70_000}\r\n", b"431"),
            ("", b"200"),
        ):
            said = await ask(here, "/v1/completions", method="POST", headers=headers)
            assert said.split()[1] == expected, (len(headers), said)
        await until(lambda: here.picker.counts.live == 0)
        assert here.picker.counts.faults == 0


@each_file
async def test_A08_what_the_gateway_itself_refuses_is_an_error_that_clients_read(
    tmp_path: Path, shipped: Shipped
) -> None:
    """Protected by `sim/gateway/refusals.mappers`; red when Envoy says it in plain text, or says
    nothing."""
    async with as_shipped(tmp_path, shipped) as here:
        for path, headers, status, says in (
            ("/v1/completions", f"x: {'a' * 70_000}\r\n", 431, "send fewer, or smaller ones"),
            ("/v1/completions", numbered(200), 431, "send fewer, or smaller ones"),
            ("/v1%2Fcompletions", "", 400, "cannot take this request: path_normalization_failed"),
        ):
            said = await ask(here, path, method="POST", headers=headers)
            assert refused(said) == (status, "invalid_request_error", status), said
            assert says in said.decode()


@pytest.mark.parametrize("shipped", SHIPPED[:1], ids=str)
async def test_A08_a_picker_out_of_reach_is_told_as_one_that_may_come_back(
    tmp_path: Path, shipped: Shipped
) -> None:
    """Protected as above."""
    async with as_shipped(tmp_path, shipped) as here:
        await here.picker.drain(0)
        said = await ask(here, "/v1/completions", method="POST")
        assert refused(said) == (503, "service_unavailable", 503), said
        assert "send it again a little later" in said.decode()


@each_file
async def test_A08_the_pickers_own_words_pass_the_gateway_as_they_are(
    tmp_path: Path, shipped: Shipped
) -> None:
    """Protected by the mappers' conditions; red when a refusal is wrapped into another one."""
    async with as_shipped(tmp_path, shipped) as here:
        for refusal in (BadRequest("send a `model`"), NoEndpoint("nobody is ready")):
            here.director.script = lambda _, said=refusal: said
            said = await ask(here, "/v1/completions", method="POST")
            assert refused(said) == (refusal.status, refusal.kind, refusal.reason), said


def refused(said: bytes) -> tuple[int, str, object]:
    """Status, type and code of an answer in the API's shape."""
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"content-type: application/json\r\n" in head.lower() + b"\r\n"
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["type"], error["code"]


def numbered(count: int) -> str:
    """So many headers, with those that `ask` sends by itself."""
    return "".join(f"x-{number}: a\r\n" for number in range(count - 3))


async def ask(here: Rig, path: str, *, method: str = "GET", headers: str = "") -> bytes:
    """The whole answer to a request written by hand. Raises EOFError when there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.gateway.port)
    head = f"{method} {path} HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\nconnection: close\r\n"
    writer.write(f"{head}{headers}\r\n".encode("latin-1"))
    async with asyncio.timeout(scaled(10)):
        said = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: (\d+)", said)
        said += await reader.readexactly(int(length[1]) if length else 0)
    writer.close()
    await writer.wait_closed()
    return said
