"""grpc.health.v1 over a socket."""

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2

from epp import protocol
from epp.errors import EppError
from epp.observe.health import Health, serve_health

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def _check(port: int, service: str) -> int | grpc.StatusCode:
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        try:
            return int(health_pb2.HealthCheckResponse.FromString(await check(request)).status)
        except aio.AioRpcError as error:
            return error.code()


async def test_liveness_is_always_serving_and_the_rest_follows_readiness() -> None:
    health = Health()
    async with serve_health(health, host="127.0.0.1", port=0) as port:
        for ready in (False, True, False):
            health.ready = ready
            for service in protocol.HEALTH_SERVICES:
                expected = SERVING if ready or service == "liveness" else NOT_SERVING
                assert await _check(port, service) == expected
            assert await _check(port, "nonsense") is grpc.StatusCode.NOT_FOUND


async def test_watching_is_not_offered() -> None:
    async with (
        serve_health(Health(), host="127.0.0.1", port=0) as port,
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        call = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_health_port_in_use_is_said_plainly() -> None:
    async with serve_health(Health(), host="127.0.0.1", port=0) as port:
        with pytest.raises(EppError, match="cannot listen"):
            async with serve_health(Health(), host="127.0.0.1", port=port):
                pass


async def test_health_is_served_over_ipv6_too() -> None:
    async with serve_health(Health(ready=True), host="::1", port=0) as port:
        assert port > 0
