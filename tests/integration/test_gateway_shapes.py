"""Each shape of the shipped configuration, through a real Envoy."""

import asyncio
import hashlib
import io
import random
from dataclasses import replace
from pathlib import Path
from typing import Literal

import aiohttp
import pytest
from yarl import URL

from epp import protocol
from epp.errors import NoEndpoint
from epp.request.exchange import Arrival, Outcome
from epp.request.transport.grpc import TransportLimits
from epp.sim.gateway.envoy import EnvoySettings, Shape
from tests.fakes.backend import raw_backend
from tests.fakes.director import route
from tests.fakes.picked_gateway import rig
from tests.fakes.waiting import until

Trailers = Literal["send", "skip"]
SHAPES: list[tuple[Shape, Trailers, bool]] = [
    ("headers-only", "skip", False),
    ("standalone", "skip", True),
    ("standalone", "send", False),
    ("full-duplex", "send", True),
    ("original-dst", "skip", False),
    ("buffered", "skip", True),
]
SIZES = (1, protocol.MAX_BODY_PIECE, protocol.MAX_BODY_PIECE + 1, 300_000, 5_000_000)
ROUTING = dict.fromkeys(protocol.ROUTING_HEADERS, "203.0.113.9:1")


def _with(trailers: Trailers, *, retries: bool = True) -> object:
    def change(settings: EnvoySettings) -> EnvoySettings:
        return replace(settings, response_trailers=trailers, retries=retries)

    return change


@pytest.mark.parametrize(("shape", "trailers", "tls"), SHAPES)
async def test_bodies_and_events_pass_untouched(
    tmp_path: Path, shape: Shape, trailers: Trailers, tls: bool
) -> None:
    change = _with(trailers)
    assert callable(change)
    async with (
        rig(tmp_path, shape, tls=tls, settings=change) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = here.to(1)
        target = URL(f"{here.gateway.url}/echo?q=%2F", encoded=True)
        for size in SIZES:
            body = random.Random(size).randbytes(size)
            async with client.post(target, data=io.BytesIO(body), headers=ROUTING) as response:
                assert response.status == 200
                assert _digest(await response.read()) == _digest(body)
            assert _digest(here.backends[1].seen[-1].body) == _digest(body)
            if shape != "headers-only":
                assert _digest(here.director.arrivals[-1].body) == _digest(body)
        async with client.post("/echo", data=b"") as response:
            assert (response.status, await response.read()) == (200, b"")
        async with client.get("/sse?n=500") as response:
            events = (await response.text()).split("\n\n")
            assert events[:-2] == [f'data: {{"token": {n}}}' for n in range(500)]
            assert events[-2:] == ["data: [DONE]", ""]
        for method, path, status in (
            ("GET", "/empty", 204),
            ("HEAD", "/", 200),
            ("GET", "/status/304", 304),
            ("GET", "/v1/models", 200),
        ):
            async with client.request(method, path) as response:
                assert response.status == status
                await response.read()  # a client that leaves before the end is no finish

        backend = here.backends[1]
        assert here.backends[0].seen == [], "every request went where the picker said"
        first = backend.seen[0]
        assert first.target == "/echo?q=%2F"
        assert first.values(protocol.DESTINATION) == [backend.address]
        others = set(protocol.ROUTING_HEADERS) - {protocol.DESTINATION}
        assert not [name for name, _ in first.headers if name in others]
        await until(lambda: here.picker.counts.live == 0)
        # A pool that Envoy does not know has no load balancer that could say who served.
        served = "" if shape == "original-dst" else backend.address
        for progress in here.director.progresses:
            assert progress.events[0] in (("headers", s, served) for s in (200, 204, 304))
            assert len(progress.ends) == 1
        # What ends with its headers is seen to finish in every shape; a body only where it passes.
        ends = [progress.ends[0][0] for progress in here.director.progresses]
        assert ends[-3:-1] == ["finished", "finished"]
        assert (set(ends) == {"finished"}) == (shape == "full-duplex")
        assert here.picker.counts.faults == 0
        assert here.picker.counts.aborted == {}
        assert here.picker.budget.used == 0
        assert await here.gateway.ext_proc("spurious_msgs_received") == 0
        assert await here.gateway.ext_proc("rejected_header_mutations") == 0


@pytest.mark.parametrize(("shape", "trailers", "tls"), SHAPES)
async def test_trailers_pass_both_ways(
    tmp_path: Path, shape: Shape, trailers: Trailers, tls: bool
) -> None:
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-t\r\n\r\n"
    answer += b"5\r\nhello\r\n0\r\nx-t: yes\r\n\r\n"
    change = _with(trailers, retries=False)
    assert callable(change)
    async with (
        raw_backend(answer) as (address, seen),
        rig(tmp_path, shape, tls=tls, more_endpoints=(address,), settings=change) as here,
    ):
        here.director.script = lambda _: route(address)
        said = await _speak(
            here.gateway.port,
            b"POST /v1/x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
            b"5\r\nhello\r\n6\r\n world\r\n0\r\nx-sum: 1\r\n\r\n",
            until_seen=b"x-t: yes\r\n\r\n",
        )
        assert said.startswith(b"HTTP/1.1 200")
        assert b"hello" in said
        (request,) = seen
        assert request.count(b"hello") == request.count(b" world") == 1
        assert request.endswith(b"0\r\nx-sum: 1\r\n\r\n")
        await until(lambda: bool(here.director.progresses[0].ends))
        # A gateway that sends us trailers shows the end of an answer even without its body.
        assert here.director.progresses[0].ends == (
            [("finished",)] if trailers == "send" else [("reset", True)]
        )
        assert await here.gateway.ext_proc("spurious_msgs_received") == 0


async def test_a_request_with_trailers_is_not_doubled_where_there_are_retries(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as here:
        for declared in (b"", b"trailer: x-sum\r\n"):
            await _speak(
                here.gateway.port,
                b"POST /echo HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n"
                + declared
                + b"\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n",
                until_seen=b"hello",
            )
            assert here.backends[1].seen[-1].body == b"hello"


async def test_an_answer_that_trailers_do_not_end_is_reset_when_it_has_ended(
    tmp_path: Path,
) -> None:
    change = _with("send")
    assert callable(change)
    async with rig(tmp_path, settings=change) as here:
        here.backends[1].event_pause_s = 0.02
        async with (
            aiohttp.ClientSession(here.gateway.url) as client,
            client.get("/sse?n=20") as response,
        ):
            await until(lambda: bool(here.director.progresses))
            assert here.director.progresses[0].ends == []
            assert (await response.text()).endswith("data: [DONE]\n\n")
        await until(lambda: bool(here.director.progresses[0].ends))
        assert here.director.progresses[0].ends == [("reset", True)]


@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_refusals_reach_the_client_as_json(tmp_path: Path, shape: Shape) -> None:
    def script(arrival: Arrival) -> Outcome:
        return NoEndpoint("nobody is ready")

    async def pieces() -> object:
        for _ in range(30):
            yield b"x" * 100_000

    limits = TransportLimits(max_request_bytes=2_000_000)
    async with (
        rig(tmp_path, shape, limits=limits) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = script
        for data, status, reason in (
            (b"x" * 100_000, 503, "rejected-no-endpoints"),
            (None, 503, "rejected-no-endpoints"),
            (io.BytesIO(b"x" * 2_000_001), 413, "too-large"),
            (pieces(), 413, "too-large"),
        ):
            async with client.post("/v1/completions", data=data) as response:
                assert response.status == status
                assert response.headers[protocol.DROP_REASON] == reason
                assert response.content_type == "application/json"
                error = (await response.json())["error"]
                assert error["code"] == reason
                assert set(error) == {"message", "type", "param", "code"}
        assert [each.seen for each in here.backends] == [[], []]
        assert here.picker.counts.refused == {"rejected-no-endpoints": 2, "too-large": 2}
        assert here.picker.budget.used == 0
        details = [line["details"] for line in await here.gateway.log_lines(4)]
        assert details == ["rejected-no-endpoints"] * 2 + ["too-large"] * 2


async def test_a_body_at_the_limit_passes_the_gateway(tmp_path: Path) -> None:
    limits = TransportLimits(max_request_bytes=2_000_000)
    async with (
        rig(tmp_path, limits=limits) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
        client.post("/echo", data=io.BytesIO(b"x" * 2_000_000)) as response,
    ):
        assert response.status == 200


@pytest.mark.parametrize("size", [10, 3_000_000])
async def test_a_dead_destination_is_skipped_before_the_first_byte(
    tmp_path: Path, size: int, unused_tcp_port: int
) -> None:
    dead = f"127.0.0.1:{unused_tcp_port}"
    body = random.Random(size).randbytes(size)
    async with (
        rig(tmp_path, more_endpoints=(dead,)) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        second = here.backends[1].address
        for destination in (f"{dead},{second}", dead, f"203.0.113.9:1,{second}"):
            here.director.script = lambda _, to=destination: route(to)
            here.backends[0].seen.clear()
            for _ in range(4):
                async with client.post("/echo", data=io.BytesIO(body)) as response:
                    assert response.status == 200
                    assert _digest(await response.read()) == _digest(body)
            if "," in destination:
                assert here.backends[0].seen == [], "the list's next entry serves"
        served = {progress.events[0][2] for progress in here.director.progresses}
        assert dead not in served
        assert second in served


async def test_an_engine_that_is_down_behind_its_sidecar_is_skipped(tmp_path: Path) -> None:
    async with (
        rig(tmp_path, backends=1) as here,
        raw_backend(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n") as down,
    ):
        # 503 says that nothing was done. Any other status is the engine's own answer.
        assert down
        async with aiohttp.ClientSession(here.gateway.url) as client:
            for status, times in ((503, 4), (500, 1), (429, 1)):
                here.backends[0].seen.clear()
                async with client.post(f"/status/{status}", data=b"x") as response:
                    assert response.status == status
                assert len(here.backends[0].seen) == times


@pytest.mark.parametrize("body", [b"a much longer body than before", b"short", None])
async def test_a_buffered_request_is_served_too(tmp_path: Path, body: bytes | None) -> None:
    async with (
        rig(tmp_path, "buffered") as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = lambda _: route(here.backends[1].address, body=body)
        async with client.post("/echo", data=b"the first body") as response:
            assert response.status == 200
            assert await response.read() == (b"the first body" if body is None else body)
        seen = here.backends[1].seen[-1]
        assert seen.body == (b"the first body" if body is None else body)
        framing = [*seen.values("content-length"), *seen.values("transfer-encoding")]
        assert len(framing) == 1
        async with client.get("/v1/models") as response:
            assert response.status == 200
        assert await here.gateway.ext_proc("spurious_msgs_received") == 0


async def test_a_buffering_gateway_takes_what_the_picker_takes(tmp_path: Path) -> None:
    async def pieces(count: int) -> object:
        for _ in range(count):
            yield b"x" * 2**18

    async with (
        rig(tmp_path, "buffered") as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        for count, status in ((40, 200), (41, 413), (44, 413), (70, 413)):
            async with client.post("/x", data=pieces(count)) as response:
                assert response.status == status
        async with client.post("/x", data=io.BytesIO(b"x" * 40 * 2**18)) as response:
            assert response.status == 200
        assert here.picker.counts.aborted == {}


async def test_a_list_of_destinations_is_no_address_of_one(tmp_path: Path) -> None:
    """Why pickers behind `original-dst` name one endpoint: Envoy takes the list as no address."""
    async with (
        rig(tmp_path, "original-dst") as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        one, two = (each.address for each in here.backends)
        for destination, status in ((one, 200), (f"{one},{two}", 503)):
            here.director.script = lambda _, to=destination: route(to)
            async with client.post("/x", data=b"x") as response:
                assert response.status == status


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


async def _speak(port: int, request: bytes, *, until_seen: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    said = b""
    async with asyncio.timeout(10):
        while until_seen not in said:
            data = await reader.read(65536)
            assert data, said
            said += data
    writer.close()
    await writer.wait_closed()
    return said
