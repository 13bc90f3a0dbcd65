"""Field faults of the ext_proc port, played by an ordinary gRPC client."""

import asyncio
import socket
import ssl
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2

from epp import protocol
from epp.errors import BadRequest
from epp.observe.health import Health
from epp.request.exchange import Arrival, Outcome
from epp.request.transport.grpc import TransportLimits, serve
from epp.request.transport.tls import server_credentials
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import ScriptedDirector, route
from tests.fakes.extproc_client import call, channel
from tests.fakes.waiting import until
from tests.timing import scaled

TO = "10.0.0.1:8000"


def _to(_: Arrival) -> Outcome:
    return route(TO)


async def _never() -> Outcome:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def _broken(_: Arrival) -> Outcome:
    raise RuntimeError("scoring failed")


async def test_A17_a_director_that_never_answers_is_cut_off() -> None:
    """Protected by the timeout in `ExtProcServer._decide`; red (hangs) with a timeout of None."""
    limits = TransportLimits(hard_deadline_s=0.2)
    director = ScriptedDirector(lambda _: _never())
    async with (
        serve(director, host="127.0.0.1", port=0, limits=limits) as server,
        channel(server.port) as to,
    ):
        stream = call(to)
        await stream.send(envoy.GET)
        async with asyncio.timeout(scaled(2)):
            assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        assert server.counts.backstops == 1


@pytest.mark.parametrize(
    "message", [(envoy.GET,), (envoy.request_headers(), envoy.request_body(b"x", end=True))]
)
async def test_A18_an_internal_fault_is_a_status_and_nothing_before_it(
    message: tuple[bytes, ...],
) -> None:
    """Protected by the edge in `ExtProcServer._decide`; red when it ends with Finish, which a
    gateway takes for "skip the picker"."""
    async with (
        serve(ScriptedDirector(_broken), host="127.0.0.1", port=0) as server,
        channel(server.port) as to,
    ):
        stream = call(to)
        await stream.send(*message)
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        assert server.counts.faults == 1
        assert server.counts.aborted == {"UNAVAILABLE": 1}
        assert server.budget.used == 0


async def test_A18_a_policy_error_is_an_answer_and_no_status() -> None:
    """Protected by `Stream.decided`; red when a Refusal becomes an Abort."""
    async with (
        serve(ScriptedDirector(lambda _: BadRequest("no")), host="127.0.0.1", port=0) as server,
        channel(server.port) as to,
    ):
        stream = call(to)
        await stream.send(envoy.GET)
        assert envoy.kinds(await stream.replies(1)) == ["immediate_response"]
        assert await stream.code() is grpc.StatusCode.OK


async def test_A19_streams_beyond_1024_are_served() -> None:
    """Protected by `max_streams` of 16,384; red with 1,024."""
    async with (
        serve(ScriptedDirector(_to), host="127.0.0.1", port=0) as server,
        channel(server.port) as to,
    ):
        live = [call(to) for _ in range(1_100)]
        for stream in live:
            await stream.send(envoy.GET)
        for stream in live:
            await stream.replies(1)
        assert server.counts.live == 1_100
        begun = time.perf_counter()
        one_more = call(to)
        await one_more.send(envoy.GET)
        assert envoy.kinds(await one_more.replies(1)) == ["request_headers"]
        assert time.perf_counter() - begun < scaled(0.5)
        for stream in [*live, one_more]:
            stream.cancel()
        await until(lambda: server.counts.live == 0)


async def test_A21_draining_lets_live_streams_end_and_takes_no_new_ones() -> None:
    """Protected by the grace in `ExtProcServer.drain`; red with a grace of None."""
    async with (
        serve(ScriptedDirector(_to), host="127.0.0.1", port=0) as server,
        channel(server.port) as to,
        channel(server.port) as late,
    ):
        stream = call(to)
        await stream.send(envoy.GET)
        await stream.replies(1)
        async with asyncio.TaskGroup() as tasks:
            drained = tasks.create_task(server.drain(scaled(20)))
            await asyncio.sleep(0.1)
            assert not drained.done()
            refused = call(late)
            assert await refused.code() is grpc.StatusCode.UNAVAILABLE
            await stream.send(envoy.response_headers(end=True))
            assert envoy.kinds(await stream.replies(1)) == ["response_headers"]
            await stream.done_writing()
            assert await stream.reply() is None
            assert await stream.code() is grpc.StatusCode.OK
            async with asyncio.timeout(scaled(2)):
                await drained


async def test_A21_idle_connections_do_not_hold_up_the_end() -> None:
    """Protected by gRPC's GOAWAY on `stop`; red when a stream is kept open on the connection."""
    async with (
        serve(ScriptedDirector(_to), host="127.0.0.1", port=0) as server,
        channel(server.port) as to,
    ):
        stream = call(to)
        await stream.send(envoy.GET)
        await stream.replies(1)
        stream.cancel()
        await until(lambda: server.counts.live == 0)
        begun = time.perf_counter()
        await server.drain(60)
        assert time.perf_counter() - begun < scaled(2)


async def test_A21_what_outlives_the_grace_is_cut() -> None:
    """Protected by the grace in `ExtProcServer.drain`; red (hangs) without a bound."""
    async with (
        serve(ScriptedDirector(_to), host="127.0.0.1", port=0) as server,
        channel(server.port) as to,
    ):
        stream = call(to)
        await stream.send(envoy.GET)
        await stream.replies(1)
        async with asyncio.timeout(scaled(2)):
            await server.drain(0.2)
            assert await stream.code() is not grpc.StatusCode.OK
        await until(lambda: server.counts.live == 0)


async def test_A26_an_ordinary_tls_client_is_offered_h2() -> None:
    """Protected by gRPC's own ALPN on a port with credentials; red on a port without them."""
    async with serve(
        ScriptedDirector(_to), host="127.0.0.1", port=0, credentials=server_credentials(None)
    ) as server:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1", "h2"])
        assert await asyncio.to_thread(_negotiated, server.port, context) == "h2"


def _negotiated(port: int, context: ssl.SSLContext) -> str | None:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        return tls.selected_alpn_protocol()


async def test_A27_health_knows_its_names_before_and_after_it_is_ready() -> None:
    """Protected by `Health.serving`; red when every name follows readiness, or none is unknown."""
    health = Health()
    names = ("", "liveness", "readiness", protocol.EXT_PROC_SERVICE, "nonsense")
    async with (
        serve(
            ScriptedDirector(_to), host="127.0.0.1", port=0, handlers=[health.handler()]
        ) as server,
        channel(server.port) as to,
    ):
        check = to.unary_unary("/grpc.health.v1.Health/Check")
        seen = []
        for health.ready in (False, True):
            for name in names:
                request = health_pb2.HealthCheckRequest(service=name).SerializeToString()
                try:
                    status = health_pb2.HealthCheckResponse.FromString(await check(request)).status
                    seen.append(health_pb2.HealthCheckResponse.ServingStatus.Name(status))
                except grpc.aio.AioRpcError as error:
                    seen.append(error.code().name)
        no, yes = "NOT_SERVING", "SERVING"
        assert seen == [no, yes, no, no, "NOT_FOUND", yes, yes, yes, yes, "NOT_FOUND"]
