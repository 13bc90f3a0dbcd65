"""Shell around the pure stream on `grpc.aio`: a port, its limits, and how it is left.

One coroutine per ext_proc stream reads and writes (`conversation`); none of it holds policy.
"""

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import structlog
from grpc import aio

from epp import protocol
from epp.errors import CannotListen
from epp.request.actions import Abort, Code, Finish
from epp.request.exchange import Arrival, Director, Outcome
from epp.request.intake import ByteBudget
from epp.request.stream import Stream

from .conversation import Context, Conversation
from .limits import StreamCounts, TransportLimits

OTHER_CALLS = 256
"""Calls besides ext_proc streams that the port takes: health checks must pass when it is full."""
READ_AHEAD_BYTES = 256 * 1024
"""Of each stream: a prompt of 60,000 tokens comes without waiting for us once."""
DEALT_AGAIN_MS = 60_000
"""Age at which a connection to one of several processes is ended, its streams left to finish: the
gateway's next one may go to another process. Few connections are never spread evenly at once."""
LAST_BYTES_S = 0.2
"""How long the last words of ended streams may take to leave."""

log = structlog.get_logger(__name__)


@asynccontextmanager
async def serve(
    director: Director,
    *,
    host: str,
    port: int,
    credentials: grpc.ServerCredentials | None = None,
    limits: TransportLimits | None = None,
    handlers: Sequence[grpc.GenericRpcHandler] = (),
    new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    on_end: Callable[[float], None] | None = None,
    shared: bool = False,
    several_pools: bool = False,
) -> AsyncIterator["ExtProcServer"]:
    """Serve ext_proc, and `handlers` beside it, while the context is open.

    Without `credentials` in plaintext. Port 0 takes a free one. `on_end` is told the seconds that
    each stream lasted. `shared`: other processes of ours listen there too. `several_pools`: the
    metadata of a stream may name the pool that it is for. Leaving the context cuts what `drain` has
    left. Raises CannotListen.
    """
    shell = ExtProcServer(
        director, limits or TransportLimits(), new_id, on_end, several_pools=several_pools
    )
    server = shell.build([*handlers, shell.handler()], shared=shared)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is None:
            shell.port = server.add_insecure_port(address)
        else:
            shell.port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise CannotListen("ext_proc", address, error, "--grpc-port") from error
    await server.start()
    try:
        yield shell
    finally:
        await server.stop(None)


class ExtProcServer:
    """A running ext_proc port."""

    def __init__(
        self,
        director: Director,
        limits: TransportLimits,
        new_id: Callable[[], str],
        on_end: Callable[[float], None] | None,
        *,
        several_pools: bool = False,
    ) -> None:
        self.counts = StreamCounts()
        self.budget = ByteBudget(limits.max_total_bytes)
        self.port = 0
        self._director = director
        self._limits = limits
        self._new_id = new_id
        self._on_end = on_end
        self._several_pools = several_pools
        self._last_came = -math.inf
        self._ended = asyncio.Event()
        self._server: aio.Server | None = None

    def build(self, handlers: list[grpc.GenericRpcHandler], *, shared: bool) -> aio.Server:
        limits = self._limits
        self._server = aio.server(
            options=(
                ("grpc.max_receive_message_length", limits.max_message_bytes),
                ("grpc.max_send_message_length", limits.max_send_bytes or -1),
                # Two pickers on one port would share it silently.
                ("grpc.so_reuseport", int(shared)),
                *((("grpc.max_connection_age_ms", DEALT_AGAIN_MS),) if shared else ()),
                # A burst that Python has not picked up yet: gRPC would reject it from 1,000 on.
                ("grpc.server.max_pending_requests", limits.max_streams),
                ("grpc.server.max_pending_requests_hard_limit", limits.max_streams),
                # Gateways ping as they like: never answer with ENHANCE_YOUR_CALM.
                ("grpc.http2.max_ping_strikes", 0),
                # What gRPC reads ahead of us is in no budget of ours: so much a stream, and no more
                # however fast the network is. It would grow to megabytes each (A03).
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", READ_AHEAD_BYTES),
                # A gateway that vanished without a word is noticed within a minute and a half.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
            ),
            maximum_concurrent_rpcs=limits.max_streams + OTHER_CALLS,
        )
        self._server.add_generic_rpc_handlers(handlers)
        return self._server

    def handler(self) -> grpc.GenericRpcHandler:
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            cast("Any", self._process)
        )
        return grpc.method_handlers_generic_handler(protocol.EXT_PROC_SERVICE, {"Process": method})

    async def quiet(self, quiet_s: float, limit_s: float) -> None:
        """Serve on until no stream has come for `quiet_s`, at most `limit_s`.

        A gateway needs a moment to learn that we are leaving; what it sends until then is worth
        the same answer as ever. A port that nobody uses is quiet already.
        """
        loop = asyncio.get_running_loop()
        limit = loop.time() + limit_s
        while True:
            left = min(self._last_came + quiet_s, limit) - loop.time()
            if left <= 0:
                return
            await asyncio.sleep(left)

    async def drain(self, grace_s: float) -> None:
        """Take no new stream, let the live ones end, cut what is left after `grace_s` (A21)."""
        assert self._server is not None
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(self._server.stop(grace_s))
            empty = tasks.create_task(self._empty())
            await asyncio.wait((stopping, empty), return_when=asyncio.FIRST_COMPLETED)
            # gRPC also waits for connections that never said a word, by its own count for minutes.
            await asyncio.wait((stopping,), timeout=LAST_BYTES_S)
            empty.cancel()
            await self._server.stop(None)

    async def _empty(self) -> None:
        """Return once no stream lives."""
        while self.counts.live:
            self._ended.clear()
            await self._ended.wait()

    async def _process(self, _: AsyncIterator[bytes], context: Context) -> None:
        began = self._last_came = asyncio.get_running_loop().time()
        self.counts.started += 1
        if self.counts.live >= self._limits.max_streams:
            status = grpc.StatusCode.RESOURCE_EXHAUSTED
            self.counts.abort(status.name)
            await context.abort(status, "too many streams")
        self.counts.live += 1
        try:
            ending = await self._converse(context)
        finally:
            self.counts.live -= 1
            self._ended.set()
            if self._on_end is not None:
                self._on_end(asyncio.get_running_loop().time() - began)
        if isinstance(ending, Abort):
            self.counts.abort(ending.code.name)
            await context.abort(grpc.StatusCode[ending.code.name], ending.message)

    async def _converse(self, context: Context) -> Finish | Abort:
        limits = self._limits
        stream = Stream(
            budget=self.budget,
            new_id=self._new_id,
            max_request_bytes=limits.max_request_bytes,
            pool=_named_pool(context) if self._several_pools else None,
        )
        conversation = Conversation(stream, context, self._decide, self.counts, limits.pace)
        ending: Finish | Abort = Finish()
        try:
            ending = await conversation.run()
        except Exception:
            # The edge of this stream's task: whatever went wrong must not look like an answer.
            if not context.cancelled():
                self.counts.faults += 1
                log.exception("ext_proc stream failed")
                ending = Abort(Code.UNAVAILABLE, "internal fault")
        finally:
            stream.closed()
            conversation.let_go()
        return ending

    async def _decide(self, arrival: Arrival) -> Outcome | Abort:
        """Never raises: this is the edge of the director's task (A18)."""
        try:
            async with asyncio.timeout(self._limits.hard_deadline_s) as deadline:
                return await self._director.decide(arrival)
        except Exception:
            if deadline.expired():
                self.counts.backstops += 1
                log.exception("decision broke the hard deadline")
                return Abort(Code.UNAVAILABLE, "no decision in time")
            self.counts.faults += 1
            log.exception("decision failed")
            return Abort(Code.UNAVAILABLE, "internal fault")


def _named_pool(context: Context) -> str | None:
    """The pool that the gateway means, by the metadata of its stream."""
    for key, value in context.invocation_metadata() or ():
        if key == protocol.POOL_METADATA and isinstance(value, str):
            return value
    return None
