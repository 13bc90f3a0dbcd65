"""Uploads that are huge, slow, or say what is not so: through a real Envoy, and without one."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest

from epp._pb import extproc_pb2 as pb
from epp.request.exchange import Arrival, Outcome
from epp.request.transport.grpc import serve
from epp.request.transport.limits import TransportLimits
from epp.request.transport.patience import BodyPace
from epp.sim.gateway.envoy import EnvoySettings
from epp.sim.gateway.routes import EVERY_PATH
from tests.fakes import extproc_messages as envoy
from tests.fakes.backend import backend
from tests.fakes.director import ScriptedDirector, route
from tests.fakes.extproc_client import call, channel
from tests.fakes.gateway import gateway
from tests.fakes.h2_wire import DATA, HEADERS, RST_STREAM, H2Wire
from tests.fakes.picked_gateway import rig
from tests.fakes.picker_process import picker_process
from tests.fakes.waiting import until
from tests.timing import scaled

MIB = 2**20
TO = "10.0.0.1:8000"
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"


def _to(_: Arrival) -> Outcome:
    return route(TO)


async def _upload(port: int, size: int) -> int:
    """Send a chunked body until all is sent or an answer is there; gives its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.get_running_loop().create_task(reader.readline())
    chunk = b"%x\r\n%b\r\n" % (MIB // 4, b"x" * (MIB // 4))
    try:
        writer.write(HEAD)
        for _ in range(size // (MIB // 4)):
            if answer.done():
                break
            writer.write(chunk)
            await writer.drain()
        return int((await answer).split()[1])
    except ConnectionError:
        return int((await answer).split()[1])
    finally:
        writer.transport.abort()


async def test_A03_twenty_uploads_of_200_MB_take_no_more_than_their_limit(tmp_path: Path) -> None:
    """Protected by the process's `budget` in `BodyIntake.add`; red without it. One request alone
    may take all of it here, so that only the budget is left to protect."""
    limit = 64 * MIB
    flags = ("--max-total-bytes", str(limit), "--max-request-bytes", str(limit))
    async with (
        backend("b") as engine,
        picker_process(tmp_path, [engine.address], *flags) as picker,
        gateway(tmp_path / "envoy", _before(picker.ports["grpc"], [engine.address])) as before,
    ):
        at_rest = picker.rss_bytes
        statuses = await asyncio.gather(*(_upload(before.port, 200 * MIB) for _ in range(20)))
        assert set(statuses) <= {413, 429, 503}, statuses
        assert 413 in statuses
        assert picker.peak_rss_bytes - at_rest < limit + 100 * MIB
        assert [seen for seen in engine.seen if seen.method == "POST"] == []
        async with (
            aiohttp.ClientSession(before.url) as client,
            client.post("/v1/completions", json={"model": "m", "prompt": "p"}) as response,
        ):
            assert response.status == 200
        assert await picker.metric("llm_d_epp_extproc_streams_inflight") <= 1


def _before(port: int, endpoints: list[str]) -> EnvoySettings:
    return EnvoySettings(
        listen_port=0,
        admin_port=0,
        ext_proc_port=port,
        endpoints=endpoints,
        tls=False,
        api_paths=EVERY_PATH,
        health_interval_s=0.1,
    )


@asynccontextmanager
async def _slow(port: int, pause_s: float) -> AsyncIterator[asyncio.StreamReader]:
    """An upload of one byte each `pause_s`, or, if that is 0, of none at all."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def trickle() -> None:
        while pause_s:
            writer.write(b"1\r\n{\r\n")
            await asyncio.sleep(pause_s)

    writer.write(HEAD)
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(trickle())
            yield reader
            task.cancel()
    finally:
        writer.transport.abort()


async def test_G13_slow_uploads_end_by_a_408_and_hinder_nobody(tmp_path: Path) -> None:
    """Protected by the patience in `Conversation._next`; red (they stay for ever) without it. Half
    of them send a byte now and then, which only the rule about the pace ends."""
    limits = TransportLimits(pace=BodyPace(idle_s=scaled(2), bytes_per_s=1_000))
    async with (
        rig(tmp_path, limits=limits) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):

        async def slow(number: int) -> bytes:
            async with (
                asyncio.timeout(scaled(20)),
                _slow(here.gateway.port, 0.25 * (number % 2)) as reader,
            ):
                return await reader.readuntil(b"}}")

        async def usual() -> float:
            begun = time.perf_counter()
            async with client.post("/v1/completions", data=b"usual") as response:
                assert response.status == 200
            return time.perf_counter() - begun

        async with asyncio.TaskGroup() as tasks:
            uploads = [tasks.create_task(slow(number)) for number in range(500)]
            await until(lambda: here.picker.counts.live == 500, within_s=10)
            assert here.picker.counts.routed == 0
            took = sorted([await usual() for _ in range(40)])
            assert here.picker.counts.live >= 250, "the slow ones were gone before the others"
        answers = [upload.result() for upload in uploads]
        assert Counter(answer.split()[1] for answer in answers) == {b"408": 500}
        assert all(b"RequestTimeout" in answer for answer in answers)
        assert took[-1] < scaled(0.5), took
        # Nothing was decided for them, so nothing was ever reserved.
        assert {arrival.body for arrival in here.director.arrivals} == {b"usual"}
        assert here.picker.counts.refused == {"request-timeout": 500}
        assert here.picker.budget.used == 0
        await until(lambda: here.picker.counts.live == 0)


async def test_G13_a_body_of_a_human_pace_is_waited_for(tmp_path: Path) -> None:
    """Protected by what a body earns in `Patience.until`; red when every body has the same time."""
    limits = TransportLimits(pace=BodyPace(idle_s=scaled(0.4), bytes_per_s=1_000))
    async with (
        rig(tmp_path, limits=limits) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):

        async def steadily() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b"x" * 1_000
                await asyncio.sleep(scaled(0.1))

        async with client.post("/echo", data=steadily()) as response:
            assert response.status == 200
            assert len(await response.read()) == 10_000


async def test_G16_a_length_that_a_peer_only_claims_is_never_believed() -> None:
    """Protected by `max_receive_message_length`; red without a limit, when the stream waits for
    four gigabytes."""
    async with (
        serve(ScriptedDirector(_to), host="127.0.0.1", port=0) as server,
        H2Wire.to(server.port) as wire,
    ):
        wire.begin_call(1)
        wire.data(1, b"\x00\xff\xff\xff\xff" + b"\x0a" * 1_000)
        frames = await wire.until(
            lambda frame: frame.stream == 1 and frame.kind in (HEADERS, RST_STREAM)
        )
        assert frames[-1].kind in (HEADERS, RST_STREAM)
        await until(lambda: server.counts.live == 0)
        assert server.budget.used == 0
        # The connection is none the worse.
        wire.begin_call(3)
        message = envoy.request_headers({":path": "/", ":method": "GET"}, end=True)
        wire.data(3, b"\x00" + len(message).to_bytes(4) + message)
        await wire.until(lambda frame: frame.stream == 3 and frame.kind == DATA)


@pytest.mark.parametrize(
    "claim",
    [b"\x00\xff\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x80\x80\x80\x80\x80\x80\x01x"],
)
async def test_G16_lengths_inside_a_message_are_not_believed_either(claim: bytes) -> None:
    """Protected by the `DecodeError` in `Stream.receive`; red (a fault of ours) when it is not
    caught."""
    async with (
        serve(ScriptedDirector(_to), host="127.0.0.1", port=0) as server,
        channel(server.port) as to,
    ):
        stream = call(to)
        await stream.send(claim)
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert server.counts.faults == 0


async def test_G16_a_framed_body_of_any_claimed_length_is_passed_on_as_it_is() -> None:
    """Protected by `BodyIntake`, which counts what is there; red when it refuses what is claimed
    inside of a body."""
    framed = b"\x00\xff\xff\xff\xffprotobuf"
    director = ScriptedDirector(_to)
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        stream = call(to)
        head = {":path": "/x.Y/Z", ":method": "POST", "content-type": "application/grpc"}
        await stream.send(envoy.request_headers(head), envoy.request_body(framed, end=True))
        replies = await stream.replies(2)
        assert b"".join(p.body for p in envoy.streamed(replies, "request_body")) == framed


async def test_G16_a_stream_cut_between_two_messages_leaves_nothing() -> None:
    """Protected by `BodyIntake.release`; red when the bytes stay counted."""
    director = ScriptedDirector(_to)
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        for mode in (pb.FULL_DUPLEX_STREAMED, pb.BUFFERED):
            stream = call(to)
            await stream.send(envoy.request_headers(request_mode=mode))
            if mode == pb.FULL_DUPLEX_STREAMED:
                await stream.send(envoy.request_body(b"x" * 100_000))
                await until(lambda: server.budget.used == 100_000)
            stream.cancel()
            await until(lambda: server.counts.live == 0)
            assert server.budget.used == 0
        assert director.arrivals == []
        assert server.counts.faults == 0


async def test_G16_a_request_without_method_or_path_is_a_bad_request() -> None:
    """Protected by `Stream._unfit`; red when it asks for neither."""
    director = ScriptedDirector(_to)
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        for head in ((":path", "/v1/models"), (":method", "GET"), ("x", "y")):
            stream = call(to)
            await stream.send(envoy.request_headers([head], end=True))
            (reply,) = await stream.replies(1)
            assert reply.immediate_response.status.code == 400
            assert await stream.code() is grpc.StatusCode.OK
        assert director.arrivals == []


async def test_a_pace_is_judged_in_buffered_mode_by_the_gateway_alone() -> None:
    """Envoy collects there, and has timeouts of its own."""
    limits = TransportLimits(pace=BodyPace(idle_s=0.05))
    async with (
        serve(ScriptedDirector(_to), host="127.0.0.1", port=0, limits=limits) as server,
        channel(server.port) as to,
    ):
        stream = call(to)
        await stream.send(envoy.request_headers(request_mode=pb.BUFFERED))
        await stream.replies(1)
        await asyncio.sleep(0.2)
        await stream.send(envoy.request_body(b"{}", end=True))
        assert envoy.kinds(await stream.replies(1)) == ["request_body"]
