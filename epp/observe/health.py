"""grpc.health.v1 for gateways and the kubelet.

`liveness` is SERVING as long as the process answers at all; every other known service follows
readiness (the empty name too). An unknown one is NOT_FOUND for `Check`, and SERVICE_UNKNOWN for
`Watch`, as the protocol has it (A27).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2

from epp import protocol
from epp.errors import CannotListen

SERVICE = "grpc.health.v1.Health"
LIVENESS = "liveness"
MAX_WATCHERS = 64
"""Gateways and kubelets ask again and again instead; a watcher costs a stream for ever."""

_Context = aio.ServicerContext[bytes, bytes]
_Request = health_pb2.HealthCheckRequest
_Response = health_pb2.HealthCheckResponse


class Health:
    """The state that probes see. Only the composition root changes it."""

    def __init__(self, *, ready: bool = False) -> None:
        self._ready = ready
        self._over = False
        self._watchers: set[asyncio.Event] = set()

    @property
    def ready(self) -> bool:
        return self._ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        self._ready = ready
        self._tell()

    def leave(self) -> None:
        """Not ready any more, for good. Watchers are told so and sent away: another picker will
        have them."""
        self._over = True
        self.ready = False

    def serving(self, service: str) -> bool | None:
        """Whether `service` is SERVING; None when nobody knows it."""
        if service not in protocol.HEALTH_SERVICES:
            return None
        return self._ready or service == LIVENESS

    def handler(self) -> grpc.GenericRpcHandler:
        """For any gRPC port: its own, and the ext_proc port."""
        check: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            cast("Any", self._check),
            request_deserializer=_Request.FromString,
            response_serializer=_Response.SerializeToString,
        )
        watch: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
            cast("Any", self._watch),
            request_deserializer=_Request.FromString,
            response_serializer=_Response.SerializeToString,
        )
        # The installed messages may be older than `List`; the request has no fields.
        every: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            cast("Any", self._list)
        )
        return grpc.method_handlers_generic_handler(
            SERVICE, {"Check": check, "Watch": watch, "List": every}
        )

    def _tell(self) -> None:
        for changed in self._watchers:
            changed.set()

    def _status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus:
        serving = self.serving(service)
        if serving is None:
            return _Response.SERVICE_UNKNOWN
        return _Response.SERVING if serving else _Response.NOT_SERVING

    async def _check(self, request: health_pb2.HealthCheckRequest, context: _Context) -> Any:
        status = self._status(request.service)
        if status == _Response.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return _Response(status=status)

    async def _watch(
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status as it is, and each time it changes."""
        if len(self._watchers) >= MAX_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watchers")
        changed, told = asyncio.Event(), None
        self._watchers.add(changed)
        try:
            while True:
                changed.clear()
                status = self._status(request.service)
                if status != told:
                    yield _Response(status=status)
                    told = status
                if self._over:
                    return
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    async def _list(self, _: bytes, __: _Context) -> bytes:
        """A HealthListResponse: `map<string, HealthCheckResponse> statuses = 1`."""
        return b"".join(map(self._entry, protocol.HEALTH_SERVICES))

    def _entry(self, service: str) -> bytes:
        """One entry of that map. No part of it reaches 128 bytes, where lengths get longer."""
        name = service.encode()
        status = _Response(status=self._status(service)).SerializeToString()
        entry = b"\x0a%c%b\x12%c%b" % (len(name), name, len(status), status)
        return b"\x0a%c%b" % (len(entry), entry)


@asynccontextmanager
async def serve_health(health: Health, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve `health` in plaintext; gives the port. Raises CannotListen."""
    server = aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers([health.handler()])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise CannotListen("health checks", address, error, "--grpc-health-port") from error
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)
