"""Field faults of the ext_proc protocol, through a real Envoy."""

import asyncio
import hashlib
import io
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from epp import protocol
from epp.errors import BadRequest
from epp.request.exchange import Arrival, Outcome
from epp.request.transport.grpc import TransportLimits
from epp.sim.gateway.envoy import EnvoySettings, Shape
from tests.conformance.shipped import SHIPPED, Shipped
from tests.fakes.director import route
from tests.fakes.picked_gateway import Rig, rig
from tests.fakes.waiting import until
from tests.timing import scaled

BIG = TransportLimits(max_request_bytes=16 * 2**20)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("size", [200_000, 1_000_000, 5_000_000, 12_000_000])
async def test_A01_a_long_prompt_reaches_the_engine_unchanged(tmp_path: Path, size: int) -> None:
    """Protected by `replies.pieces`; red when it drops the rest of a body after one piece."""
    body = random.Random(size).randbytes(size)
    async with (
        rig(tmp_path, limits=BIG) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        async with client.post("/x", data=io.BytesIO(body)) as response:
            assert response.status == 200
        assert _digest(here.backends[1].seen[0].body) == _digest(body)


async def test_A02_the_three_shapes_of_no_body_are_answered_at_once(tmp_path: Path) -> None:
    """Protected by `Stream._on_request_headers`; red (hangs) when it waits for a body."""

    async def nothing() -> object:
        return
        yield b""

    async with (
        rig(tmp_path) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        for method, data in (("GET", None), ("POST", b""), ("POST", nothing())):
            begun = time.perf_counter()
            async with client.request(method, "/v1/models", data=data) as response:
                assert response.status == 200
            assert time.perf_counter() - begun < scaled(1)
        assert [arrival.has_body for arrival in here.director.arrivals] == [False, False, True]
        assert here.director.arrivals[2].body == b""


async def test_A03_huge_uploads_are_refused_and_not_kept(tmp_path: Path) -> None:
    """Protected by `BodyIntake.add` and `declared`; red when either never refuses."""

    async def upload() -> object:
        for _ in range(200):
            yield b"x" * 100_000

    limits = TransportLimits(max_request_bytes=2**20)
    peak = 0
    async with (
        rig(tmp_path, limits=limits) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):

        async def post() -> int:
            nonlocal peak
            async with client.post("/x", data=upload()) as response:
                peak = max(peak, here.picker.budget.used)
                return response.status

        assert await asyncio.gather(*(post() for _ in range(20))) == [413] * 20
        head = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 1000000000000\r\n\r\n"
        assert (await _speak(here.gateway.port, head)).startswith(b"HTTP/1.1 413")
        assert peak <= 20 * limits.max_request_bytes
        assert here.picker.budget.used == 0
        assert here.picker.counts.refused == {"too-large": 21}
        assert here.backends[1].seen == []
        async with client.post("/x", data=b"small") as response:
            assert response.status == 200


@pytest.mark.parametrize("alias", [b'{"model":"much-longer-name"}', b'{"model":"s"}'])
@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_A04_a_rewritten_body_has_one_framing_header(
    tmp_path: Path, alias: bytes, shape: Shape
) -> None:
    """Protected by `new_length` in `Stream._route_replies`: gateways that keep content-length get
    it removed. Envoy drops it by itself in this mode, so the unit test of A04 is the one seen red;
    the buffered twin in test_gateway_shapes gives 500 without it."""
    async with (
        rig(tmp_path, shape) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = lambda _: route(here.backends[1].address, body=alias)
        async with client.post("/x", data=b'{"model":"alias"}') as response:
            assert response.status == 200
        (seen,) = here.backends[1].seen
        assert json.loads(seen.body) == json.loads(alias)
        assert len([*seen.values("content-length"), *seen.values("transfer-encoding")]) == 1


class Opens(NamedTuple):
    """What a gateway that fails open lets pass: a GET, and a POST."""

    fault: tuple[int, int]
    """Where deciding failed."""
    died: tuple[int, int]
    """Where the picker is gone, and the gateway has not noticed yet."""
    down: tuple[int, int]
    """Where it has."""


# Envoy cannot fail open once it has sent a piece of the body to a stream that then dies, and a
# pool that it does not know has nobody to send to without a decision.
STREAMING = Opens(fault=(200, 503), died=(200, 503), down=(200, 200))
BUFFERING = Opens(fault=(200, 200), died=(200, 200), down=(200, 200))
NEVER = Opens(fault=(503, 503), died=(503, 503), down=(503, 503))
FAILS_OPEN: dict[str, Opens] = {
    "standalone": STREAMING,
    "standalone-trailers": STREAMING,
    "full-duplex": STREAMING,
    "original-dst": NEVER,
    "buffered": BUFFERING,
}


@pytest.mark.parametrize("fail_open", [False, True])
@pytest.mark.parametrize("shipped", SHIPPED, ids=str)
async def test_A18_the_failure_mode_decides_over_faults_and_never_over_policy(
    tmp_path: Path, shipped: Shipped, fail_open: bool
) -> None:
    """Protected by the edges in transport/grpc and by the health-checked cluster with panic 0:
    red when a fault ends with Finish (200 when closed), and, for the picker that is down, when the
    bootstrap allows panic again (503 when open). docs/operations.md has this table."""

    def mode(settings: EnvoySettings) -> EnvoySettings:
        return replace(settings, fail_open=fail_open, response_trailers=shipped.trailers)

    def unchecked(settings: EnvoySettings) -> EnvoySettings:
        return replace(mode(settings), health_interval_s=60)

    def fault(_: Arrival) -> Outcome:
        raise RuntimeError("scoring failed")

    passes = FAILS_OPEN[shipped.name] if fail_open else NEVER
    async with rig(tmp_path / "a", shipped.shape, settings=mode) as here:
        here.director.script = lambda _: BadRequest("no")
        assert await _statuses(here) == (400, 400)
        here.director.script = fault
        assert await _statuses(here) == passes.fault
        assert here.picker.counts.faults == 2
        await here.picker.drain(0)
        await here.gateway.picker_healthy(False)
        assert await _statuses(here) == passes.down
    async with rig(tmp_path / "b", shipped.shape, settings=unchecked) as here:
        await here.picker.drain(0)
        assert await _statuses(here) == passes.died


async def test_A18_a_client_cannot_steer_a_gateway_that_failed_open(tmp_path: Path) -> None:
    """Protected by the early header mutation of the bootstrap; red without it: the header reaches
    the engine."""
    async with (
        rig(tmp_path, settings=lambda each: replace(each, fail_open=True)) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        await here.picker.drain(0)
        await here.gateway.picker_healthy(False)
        headers = dict.fromkeys(protocol.ROUTING_HEADERS, "203.0.113.9:1")
        async with client.post("/x", data=b"x", headers=headers) as response:
            assert response.status == 200
        (seen,) = [each for backend in here.backends for each in backend.seen]
        assert not [name for name, _ in seen.headers if name in protocol.ROUTING_HEADERS]


async def test_A21_a_rollout_of_the_picker_lets_answers_end(tmp_path: Path) -> None:
    """Protected by the grace in `ExtProcServer.drain`; red (answers cut) with a grace of None."""
    async with (
        rig(tmp_path, "full-duplex") as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.backends[1].event_pause_s = 0.02
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(_sse(client, 50)) for _ in range(20)]
            await until(lambda: here.picker.counts.routed == 20)
            here.health.ready = False
            begun = time.perf_counter()
            await here.picker.drain(scaled(20))
            assert time.perf_counter() - begun < scaled(10)
        assert [answer.result() for answer in answers] == [True] * 20
        assert {progress.ends[0] for progress in here.director.progresses} == {("finished",)}


@pytest.mark.parametrize(
    "model",
    ["a\r\nx-evil: 1", "m" * 20_000, "mod\u00e8le", "m\x00", "m\u2028\U0001f600"],
)
async def test_A23_text_of_a_user_never_spoils_a_header(tmp_path: Path, model: str) -> None:
    """Protected by `replies.settable`; red (500 and a rejected mutation) when it says yes."""

    def script(arrival: Arrival) -> Outcome:
        text = json.loads(arrival.body)["model"]
        return route(here.backends[1].address, set_headers=(("x-model", text),))

    async with (
        rig(tmp_path) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = script
        for sent, arrives in ((model, []), ("plain", ["plain"])):
            async with client.post("/x", json={"model": sent}) as response:
                assert response.status == 200
            seen = here.backends[1].seen[-1]
            assert seen.values("x-model") == arrives
            assert seen.values("x-evil") == []
        assert await here.gateway.ext_proc("rejected_header_mutations") == 0


@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_A24_answers_without_a_body_are_finished(tmp_path: Path, shape: Shape) -> None:
    """Protected by `Stream._on_response_headers`; red when it does not look at end_of_stream."""
    async with (
        rig(tmp_path, shape) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        requests = [("GET", "/empty"), ("GET", "/status/304"), ("HEAD", "/x"), ("GET", "/echo")]
        for method, path in requests * 5:
            async with client.request(method, path, allow_redirects=False) as response:
                await response.read()
        await until(lambda: here.picker.counts.live == 0)
        ends = [progress.ends for progress in here.director.progresses]
        assert ends == [[("finished",)]] * 20


@pytest.mark.parametrize("shipped", SHIPPED, ids=str)
async def test_A31_what_a_dying_picker_does_to_running_answers(
    tmp_path: Path, shipped: Shipped
) -> None:
    """Protected by the shapes in which answers do not pass the picker; red for them when their
    response body mode is FULL_DUPLEX_STREAMED, or their trailers are sent. The other cases keep the
    table in docs/operations.md true."""
    survive = shipped.response_trailers == "SKIP"

    def trailers(settings: EnvoySettings) -> EnvoySettings:
        return replace(settings, response_trailers=shipped.trailers)

    async with (
        rig(tmp_path, shipped.shape, settings=trailers) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.backends[1].event_pause_s = 0.05
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(_sse(client, 20)) for _ in range(10)]
            await until(lambda: len(here.backends[1].seen) == 10)
            await asyncio.sleep(0.2)
            await here.picker.drain(0)
        assert [answer.result() for answer in answers] == [survive] * 10


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (
            b"GET /x HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
            b"403",
        ),
        (b"GET /x HTTP/1.0\r\n\r\n", b"426"),
        (b"CONNECT h:80 HTTP/1.1\r\nhost: h\r\n\r\n", b"404"),
        (
            b"POST /x HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
            b"100",
        ),
    ],
)
async def test_A32_odd_requests_never_hang(
    tmp_path: Path, request_bytes: bytes, status: bytes
) -> None:
    """Protected by Envoy, and by the filter that is off without a route: an answer to what Envoy
    does not take is lost where it has to pass the picker. Red (HTTP/1.0 is cut) when it is on.
    CONNECT through other gateways: `Stream._unfit`."""
    async with rig(tmp_path) as here:
        async with asyncio.timeout(scaled(2)):
            answer = await _speak(here.gateway.port, request_bytes)
        assert (answer.split() or [b"", b"closed"])[1] == status
        assert here.picker.counts.faults == 0


async def _statuses(here: Rig) -> tuple[int, int]:
    """Of a GET and of a POST."""
    async with aiohttp.ClientSession(here.gateway.url) as client:
        async with client.get("/x") as response:
            get = response.status
        async with client.post("/x", data=b"x" * 1000) as response:
            return get, response.status


async def _sse(client: aiohttp.ClientSession, events: int) -> bool:
    """Whether the whole answer came."""
    try:
        async with client.get(f"/sse?n={events}") as response:
            return (await response.text()).endswith("data: [DONE]\n\n")
    except aiohttp.ClientError:
        return False


async def _speak(port: int, request: bytes) -> bytes:
    """The first bytes of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read(65536)
    writer.close()
    await writer.wait_closed()
    return answer
