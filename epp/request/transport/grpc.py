"""Shell around the pure stream on `grpc.aio`: moves serialised messages, holds no policy.

One coroutine per ext_proc stream reads and writes; the director works in a task beside it, so that
a gateway that gives up, or answers by itself, is noticed while a decision is still out.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import structlog
from grpc import aio

from epp import protocol
from epp.errors import EppError
from epp.request.actions import Abort, Action, Code, Decide, Finish, Send
from epp.request.exchange import Arrival, Director, Outcome, Route
from epp.request.intake import ByteBudget
from epp.request.stream import MAX_REQUEST_BYTES, Stream

log = structlog.get_logger(__name__)

_Context = aio.ServicerContext[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """What one picker process takes on. Each limit protects its memory, none shapes traffic."""

    max_request_bytes: int = MAX_REQUEST_BYTES
    """Largest request body; a longer one is answered with 413."""
    max_total_bytes: int = 512 * 2**20
    """Bytes of request bodies held at once."""
    max_streams: int = 16_384
    """Concurrent streams, one per running HTTP request: more are refused with
    RESOURCE_EXHAUSTED. Far above the 1,024 at which gateways and thread pools fail (A19)."""
    hard_deadline_s: float = 5.0
    """Backstop for a director that breaks its own deadline (A17)."""

    @property
    def max_message_bytes(self) -> int:
        """Largest message from a gateway: a whole body in BUFFERED mode, and its frame."""
        return max(self.max_request_bytes, 4 * 2**20) + 2**20


@dataclass(slots=True)
class StreamCounts:
    """What became of the streams. Plain numbers that only grow, but for `live`."""

    started: int = 0
    live: int = 0
    routed: int = 0
    refused: dict[str, int] = field(default_factory=dict[str, int])
    """By the refusal's reason, a closed set of words."""
    aborted: dict[str, int] = field(default_factory=dict[str, int])
    """By gRPC status: protocol faults of the gateway and our own."""
    late: int = 0
    """Decisions that nobody waited for any more."""
    backstops: int = 0
    """Directors that broke the hard deadline."""
    faults: int = 0
    """Exceptions of our own code."""

    def refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def abort(self, code: Code) -> None:
        self.aborted[code.name] = self.aborted.get(code.name, 0) + 1


@asynccontextmanager
async def serve(
    director: Director,
    *,
    host: str,
    port: int,
    credentials: grpc.ServerCredentials | None = None,
    limits: TransportLimits = TransportLimits(),
    handlers: Sequence[grpc.GenericRpcHandler] = (),
    new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
) -> AsyncIterator["ExtProcServer"]:
    """Serve ext_proc, and `handlers` beside it, while the context is open.

    Without `credentials` in plaintext. Port 0 takes a free one. Leaving the context cuts what
    `drain` has left. Raises EppError when the port cannot be had.
    """
    shell = ExtProcServer(director, limits, new_id)
    server = shell.build([*handlers, shell.handler()])
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is None:
            shell.port = server.add_insecure_port(address)
        else:
            shell.port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise EppError(f"cannot listen for ext_proc on {address}: is the port in use?") from error
    await server.start()
    try:
        yield shell
    finally:
        await server.stop(None)


class ExtProcServer:
    """A running ext_proc port."""

    def __init__(
        self, director: Director, limits: TransportLimits, new_id: Callable[[], str]
    ) -> None:
        self.counts = StreamCounts()
        self.budget = ByteBudget(limits.max_total_bytes)
        self.port = 0
        self._director = director
        self._limits = limits
        self._new_id = new_id
        self._server: aio.Server | None = None

    def build(self, handlers: list[grpc.GenericRpcHandler]) -> aio.Server:
        self._server = aio.server(
            options=(
                ("grpc.max_receive_message_length", self._limits.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # two pickers on one port would share it silently
                # A burst that Python has not picked up yet: gRPC would reject it from 1,000 on.
                ("grpc.server.max_pending_requests", self._limits.max_streams),
                ("grpc.server.max_pending_requests_hard_limit", self._limits.max_streams),
                # Gateways ping as they like: never answer with ENHANCE_YOUR_CALM.
                ("grpc.http2.max_ping_strikes", 0),
                # A gateway that vanished without a word is noticed within a minute and a half.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
            ),
            maximum_concurrent_rpcs=self._limits.max_streams,
        )
        self._server.add_generic_rpc_handlers(handlers)
        return self._server

    def handler(self) -> grpc.GenericRpcHandler:
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            cast("Any", self._process)
        )
        return grpc.method_handlers_generic_handler(protocol.EXT_PROC_SERVICE, {"Process": method})

    async def drain(self, grace_s: float) -> None:
        """Take no new stream, let the live ones end, cut what is left after `grace_s` (A21)."""
        assert self._server is not None
        await self._server.stop(grace_s)

    async def _process(self, _: AsyncIterator[bytes], context: _Context) -> None:
        self.counts.started += 1
        self.counts.live += 1
        stream = Stream(
            budget=self.budget,
            new_id=self._new_id,
            max_request_bytes=self._limits.max_request_bytes,
        )
        conversation = _Conversation(stream, context, self._decide, self.counts)
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
            self.counts.live -= 1
            stream.closed()
            conversation.let_go()
        if isinstance(ending, Abort):
            self.counts.abort(ending.code)
            await context.abort(grpc.StatusCode[ending.code.name], ending.message)

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


class _Conversation:
    """One stream's loop: at most one read and one decision are under way at any time."""

    def __init__(
        self,
        stream: Stream,
        context: _Context,
        decide: Callable[[Arrival], Any],
        counts: StreamCounts,
    ) -> None:
        self._stream = stream
        self._context = context
        self._decide = decide
        self._counts = counts
        self._deciding: asyncio.Task[Outcome | Abort] | None = None
        self._reading: asyncio.Task[Any] | None = None
        self._read_all = False

    async def run(self) -> Finish | Abort:
        """Talk until the stream is over; gives how it is to be ended."""
        async with asyncio.TaskGroup() as tasks:
            ending = None
            while ending is None:
                ending = await self._step(tasks)
            for task in (self._reading, self._deciding):
                if task is not None:
                    task.cancel()
        return ending

    def let_go(self) -> None:
        """After the end: an outcome that came too late gives back what it reserved."""
        task = self._deciding
        if task is not None and task.done() and not task.cancelled():
            outcome = task.result()
            if not isinstance(outcome, Abort):
                self._counts.late += 1
                self._stream.decided(outcome)

    async def _step(self, tasks: asyncio.TaskGroup) -> Finish | Abort | None:
        """Take the next message or the decision, whichever comes first."""
        if self._deciding is not None:
            if self._reading is None and not self._read_all:
                # A pending read is never cancelled while the stream lives: its message would
                # be lost. It is awaited below once the decision is out.
                self._reading = tasks.create_task(self._context.read())
            waiting = [task for task in (self._reading, self._deciding) if task is not None]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._deciding.done():
                return await self._answer(self._deciding, tasks)
        reading, self._reading = self._reading, None
        message = await (reading or self._context.read())
        if message is aio.EOF:
            self._read_all = True
            return await self._perform(self._stream.half_closed(), tasks)
        return await self._perform(self._stream.receive(message), tasks)

    async def _answer(
        self, deciding: asyncio.Task[Outcome | Abort], tasks: asyncio.TaskGroup
    ) -> Finish | Abort | None:
        self._deciding = None
        outcome = deciding.result()
        if isinstance(outcome, Abort):
            return outcome
        actions = self._stream.decided(outcome)
        if not actions:
            self._counts.late += 1
        elif isinstance(outcome, Route):
            self._counts.routed += 1
        ending = await self._perform(actions, tasks)
        self._stream.written()
        return ending

    async def _perform(
        self, actions: Sequence[Action], tasks: asyncio.TaskGroup
    ) -> Finish | Abort | None:
        if actions and isinstance(actions[-1], Finish) and actions[-1].refused:
            # Counted before it is sent: gateways cut the stream as soon as they have a refusal.
            self._counts.refuse(actions[-1].refused)
        for action in actions:
            if isinstance(action, Send):
                await self._context.write(action.data)
            elif isinstance(action, Decide):
                self._deciding = tasks.create_task(self._decide(action.arrival))
            else:
                return action
        return None
