"""The gRPC shell around the stream, spoken to by an ordinary gRPC client."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.errors import EppError, NoEndpoint
from epp.observe.health import Health
from epp.request.exchange import Arrival, Outcome
from epp.request.transport.grpc import TransportLimits, serve
from epp.request.transport.tls import host_names, self_signed
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import RecordingProgress, ScriptedDirector, route
from tests.fakes.extproc_client import call, channel
from tests.fakes.waiting import until
from tests.timing import scaled

TO = "10.0.0.1:8000"
SETTINGS, PING, GOAWAY = 4, 6, 7


def _to(_: Arrival) -> Outcome:
    return route(TO)


async def test_a_request_is_decided_and_answered() -> None:
    director = ScriptedDirector(_to)
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        stream = call(to)
        await stream.send(envoy.request_headers(), envoy.request_body(b"hello", end=True))
        replies = await stream.replies(2)
        assert envoy.kinds(replies) == ["request_headers", "request_body"]
        await stream.send(envoy.response_headers(end=True))
        assert envoy.kinds(await stream.replies(1)) == ["response_headers"]
        await stream.done_writing()
        assert await stream.reply() is None
        assert await stream.code() is grpc.StatusCode.OK
        assert director.progresses[0].events == [("headers", 200, None), ("finished",)]
        assert server.counts.routed == 1
        assert server.budget.used == 0


async def test_tls_works_for_a_client_that_verifies_the_name() -> None:
    certificate, key = self_signed(host_names())
    credentials = grpc.ssl_server_credentials([(key, certificate)])
    director = ScriptedDirector(_to)
    async with (
        serve(director, host="127.0.0.1", port=0, credentials=credentials) as server,
        channel(server.port, root=certificate) as to,
    ):
        stream = call(to)
        await stream.send(envoy.GET)
        assert envoy.kinds(await stream.replies(1)) == ["request_headers"]


async def test_a_refusal_ends_the_stream_well() -> None:
    director = ScriptedDirector(lambda _: NoEndpoint("nobody"))
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        stream = call(to)
        await stream.send(envoy.GET)
        assert envoy.kinds(await stream.replies(1)) == ["immediate_response"]
        assert await stream.reply() is None
        assert await stream.code() is grpc.StatusCode.OK
        assert server.counts.refused == {"rejected-no-endpoints": 1}


async def test_a_gateway_that_gives_up_cancels_the_decision() -> None:
    cancelled = asyncio.Event()

    async def wait_forever() -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError("unreachable")

    director = ScriptedDirector(lambda _: wait_forever())
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        stream = call(to)
        await stream.send(envoy.GET)
        await until(lambda: bool(director.arrivals))
        stream.cancel()
        async with asyncio.timeout(scaled(2)):
            await cancelled.wait()
        await until(lambda: server.counts.live == 0)
        assert server.counts.faults == 0


async def test_a_route_that_comes_with_the_cancellation_is_given_back() -> None:
    progress = RecordingProgress()

    async def decide_when_cancelled() -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return route(TO, progress=progress)
        raise AssertionError("unreachable")

    director = ScriptedDirector(lambda _: decide_when_cancelled())
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        stream = call(to)
        await stream.send(envoy.GET)
        await until(lambda: bool(director.arrivals))
        stream.cancel()
        await until(lambda: bool(progress.events))
        assert progress.events == [("reset", False)]
        assert server.counts.late == 1


async def test_an_answer_of_the_gateway_itself_is_seen_while_a_decision_is_out() -> None:
    release = asyncio.Event()
    progress = RecordingProgress()

    async def slowly() -> Outcome:
        await release.wait()
        return route(TO, progress=progress)

    director = ScriptedDirector(lambda _: slowly())
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        stream = call(to)
        await stream.send(envoy.GET, envoy.response_headers("504", end=True))
        assert envoy.kinds(await stream.replies(1)) == ["response_headers"]
        release.set()
        await until(lambda: bool(progress.events))
        assert progress.events == [("reset", False)]
        assert server.counts.late == 1
        await stream.send(envoy.response_trailers())
        assert envoy.kinds(await stream.replies(1)) == ["response_trailers"]


async def test_a_message_that_comes_while_a_decision_is_out_is_not_lost() -> None:
    release = asyncio.Event()

    async def slowly() -> Outcome:
        await release.wait()
        return route(TO)

    director = ScriptedDirector(lambda _: slowly())
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        stream = call(to)
        await stream.send(envoy.request_headers(request_mode=pb.NONE))
        await until(lambda: bool(director.arrivals))
        release.set()
        assert envoy.kinds(await stream.replies(1)) == ["request_headers"]
        # The read that began during the decision is the one that gets this message.
        await stream.send(envoy.response_headers())
        assert envoy.kinds(await stream.replies(1)) == ["response_headers"]


async def test_a_caller_that_half_closes_is_still_answered() -> None:
    director = ScriptedDirector(_to)
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        stream = call(to)
        await stream.send(envoy.request_headers(), envoy.request_body(b"x", end=True))
        await stream.done_writing()
        assert envoy.kinds(await stream.replies(2)) == ["request_headers", "request_body"]
        assert await stream.reply() is None
        assert await stream.code() is grpc.StatusCode.OK
        assert director.progresses[0].events == [("reset", False)]


async def test_a_stream_without_an_answer_never_ends_well() -> None:
    director = ScriptedDirector(_to)
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        stream = call(to)
        await stream.send(envoy.request_headers())
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.CANCELLED
        garbage = call(to)
        await garbage.send(b"\xff")
        assert await garbage.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert server.counts.aborted == {"CANCELLED": 1, "INVALID_ARGUMENT": 1}


async def test_a_fault_in_the_progress_aborts_the_stream_and_is_counted() -> None:
    class Broken(RecordingProgress):
        def response_headers(
            self, status: int, served: str | None, *, streaming: bool = False
        ) -> None:
            raise RuntimeError("bookkeeping failed")

    director = ScriptedDirector(lambda _: route(TO, progress=Broken()))
    async with serve(director, host="127.0.0.1", port=0) as server, channel(server.port) as to:
        stream = call(to)
        await stream.send(envoy.GET)
        await stream.replies(1)
        await stream.send(envoy.response_headers())
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        assert server.counts.faults == 1


async def test_streams_above_the_limit_are_refused() -> None:
    director = ScriptedDirector(_to)
    limits = TransportLimits(max_streams=2)
    async with (
        serve(director, host="127.0.0.1", port=0, limits=limits) as server,
        channel(server.port) as to,
    ):
        live = [call(to) for _ in range(2)]
        for stream in live:
            await stream.send(envoy.GET)
            await stream.replies(1)
        third = call(to)
        assert await third.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        live[0].cancel()
        await until(lambda: server.counts.live == 1)
        fourth = call(to)
        await fourth.send(envoy.GET)
        assert envoy.kinds(await fourth.replies(1)) == ["request_headers"]


@pytest.mark.parametrize(("extra", "passes"), [(0, True), (2 * 2**20, False)])
async def test_a_message_may_hold_a_whole_body_and_no_more(extra: int, passes: bool) -> None:
    limits = TransportLimits(max_request_bytes=5 * 2**20)
    body = b"x" * (5 * 2**20 + extra)
    director = ScriptedDirector(_to)
    async with (
        serve(director, host="127.0.0.1", port=0, limits=limits) as server,
        channel(server.port) as to,
    ):
        stream = call(to)
        await stream.send(envoy.request_headers(request_mode=pb.BUFFERED))
        await stream.replies(1)
        await stream.send(envoy.request_body(body, end=True))
        if passes:
            assert envoy.kinds(await stream.replies(1)) == ["request_body"]
        else:
            assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_gateway_may_ping_as_often_as_it_likes() -> None:
    def frame(kind: int, payload: bytes = b"") -> bytes:
        return len(payload).to_bytes(3) + bytes((kind, 0)) + bytes(4) + payload

    async with serve(ScriptedDirector(_to), host="127.0.0.1", port=0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS))
        answered = 0
        for number in range(10):
            writer.write(frame(PING, number.to_bytes(8)))
            answer = 0
            while answer != PING:
                head = await asyncio.wait_for(reader.readexactly(9), scaled(2))
                answer = head[3]
                await reader.readexactly(int.from_bytes(head[:3]))
                assert answer != GOAWAY
            answered += 1
        assert answered == 10
        writer.close()
        await writer.wait_closed()


async def test_a_port_in_use_is_said_plainly() -> None:
    director = ScriptedDirector(_to)
    async with serve(director, host="127.0.0.1", port=0) as server:
        with pytest.raises(EppError, match=r"it is taken.*--grpc-port"):
            async with serve(director, host="127.0.0.1", port=server.port):
                pass


async def test_other_services_live_on_the_same_port() -> None:
    director = ScriptedDirector(_to)
    health = Health(ready=True)
    async with (
        serve(director, host="127.0.0.1", port=0, handlers=[health.handler()]) as server,
        channel(server.port) as to,
    ):
        check = to.unary_unary("/grpc.health.v1.Health/Check")
        request = health_pb2.HealthCheckRequest(service=protocol.EXT_PROC_SERVICE)
        answer = health_pb2.HealthCheckResponse.FromString(await check(request.SerializeToString()))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_each_stream_tells_how_long_it_lasted() -> None:
    lasted: list[float] = []
    async with (
        serve(ScriptedDirector(_to), host="127.0.0.1", port=0, on_end=lasted.append) as server,
        channel(server.port) as to,
    ):
        stream = call(to)
        await stream.send(envoy.GET)
        await stream.replies(1)
        await asyncio.sleep(0.05)
        assert lasted == []
        stream.cancel()
        await until(lambda: lasted)
    assert lasted[0] >= 0.05


async def test_a_port_that_is_full_still_answers_health_checks() -> None:
    limits = TransportLimits(max_streams=1)
    health = Health(ready=True)
    async with (
        serve(
            ScriptedDirector(_to),
            host="127.0.0.1",
            port=0,
            limits=limits,
            handlers=[health.handler()],
        ) as server,
        channel(server.port) as to,
    ):
        stream = call(to)
        await stream.send(envoy.GET)
        await stream.replies(1)
        assert await call(to).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.counts.aborted == {"RESOURCE_EXHAUSTED": 1}
        check = to.unary_unary("/grpc.health.v1.Health/Check")
        answer = health_pb2.HealthCheckResponse.FromString(await check(b""))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("limits", "passes"),
    [
        (TransportLimits(max_recv_bytes=100_000), False),
        (TransportLimits(max_send_bytes=100_000), True),
        (TransportLimits(max_send_bytes=50_000), False),
    ],
)
async def test_sizes_of_messages_are_bounded_as_asked(
    limits: TransportLimits, passes: bool
) -> None:
    """A body of 200 KB comes as one message, and goes in pieces of 62 KB."""
    async with (
        serve(ScriptedDirector(_to), host="127.0.0.1", port=0, limits=limits) as server,
        channel(server.port) as to,
    ):
        stream = call(to)
        await stream.send(envoy.request_headers(), envoy.request_body(b"x" * 200_000, end=True))
        if passes:
            assert len(await stream.replies(5)) == 5
        else:
            with pytest.raises(grpc.RpcError) as caught:
                await stream.replies(5)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        stream.cancel()
        await until(lambda: server.counts.live == 0)
        assert server.budget.used == 0


async def test_what_still_comes_is_served_until_nothing_comes() -> None:
    async with (
        serve(ScriptedDirector(_to), host="127.0.0.1", port=0) as server,
        channel(server.port) as to,
    ):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await server.quiet(0.3, 10)
        assert loop.time() - begun < scaled(0.2), "nobody ever came"

        async def come(times: int) -> None:
            for _ in range(times):
                stream = call(to)
                await stream.send(envoy.GET)
                assert envoy.kinds(await stream.replies(1)) == ["request_headers"]
                stream.cancel()
                await asyncio.sleep(0.05)

        await come(1)
        async with asyncio.TaskGroup() as tasks:
            coming = tasks.create_task(come(10))
            await server.quiet(scaled(0.3), 10)
            assert coming.done()
        begun = loop.time()
        async with asyncio.TaskGroup() as tasks:
            coming = tasks.create_task(come(20))
            await server.quiet(scaled(0.3), 0.3)
            assert not coming.done()
            assert loop.time() - begun < scaled(0.9)
