"""grpc.health.v1 for gateways and the kubelet.

`liveness` is SERVING as long as the process answers at all; every other known service follows
readiness (the empty name too); an unknown one is NOT_FOUND (A27). `Watch` is not offered: gRPC
answers UNIMPLEMENTED, and the probes that we know fall back on `Check` or never use anything else.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2

from epp import protocol
from epp.errors import EppError

SERVICE = "grpc.health.v1.Health"
LIVENESS = "liveness"

_Context = aio.ServicerContext[bytes, bytes]


@dataclass(slots=True)
class Health:
    """The state that probes see. `ready` is set by the composition root alone."""

    ready: bool = False

    def serving(self, service: str) -> bool | None:
        """Whether `service` is SERVING; None when nobody knows it."""
        if service not in protocol.HEALTH_SERVICES:
            return None
        return self.ready or service == LIVENESS

    def handler(self) -> grpc.GenericRpcHandler:
        """For any gRPC port: its own, and the ext_proc port."""
        check: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            cast("Any", self._check),
            request_deserializer=health_pb2.HealthCheckRequest.FromString,
            response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Check": check})

    async def _check(
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        serving = self.serving(request.service)
        if serving is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        response = health_pb2.HealthCheckResponse
        return response(status=response.SERVING if serving else response.NOT_SERVING)


@asynccontextmanager
async def serve_health(health: Health, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve `health` in plaintext; gives the port. Raises EppError when it cannot be had."""
    server = aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers([health.handler()])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise EppError(f"cannot listen for health checks on {address}") from error
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)
