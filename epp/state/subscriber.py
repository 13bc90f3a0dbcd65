"""Read an engine's KV events from its ZMQ publisher: a thin shell, all policy is in `events`.

Nothing is queued here beyond what ZMQ holds (`max_queue` messages). When that is full the
publisher drops, and the sequence of the next message shows the gap. So does a damaged frame, which
is dropped and counted. Either way `sequencer` tells the owner what to do.
"""

import asyncio
from types import TracebackType
from typing import Self

import zmq
import zmq.asyncio

from epp.errors import EppError

from .events import MAX_PAYLOAD, DecodeError, Frame, split_frames

MAX_QUEUE = 10_000
"""Messages; vLLM's own publisher holds 100,000."""
HARD_LIMIT = 4
"""Where strangers may connect (`bind`), a message of this many times `max_message` isn't even
read: ZMQ cuts that connection. A socket that connects must not say so: ZMQ would cut the connection
and never try again, and the index would freeze in silence."""
BREATH = 64
"""Frames after which other tasks get their turn, however many are waiting."""


class SubscribeError(EppError):
    """The socket can't be opened: the endpoint is no address, or somebody has it already."""

    reason = "kv-subscribe"


class EventSubscriber:
    """Frames of one publisher, for ever; reconnects by itself when the publisher restarts.

    `bind` where the publisher connects (vLLM does so for an endpoint with a plain host, and binds
    for `*` and `::`). Use as an async context, then iterate, from one task.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        bind: bool,
        topic: str = "",
        context: zmq.asyncio.Context | None = None,
        max_message: int = MAX_PAYLOAD,
        max_queue: int = MAX_QUEUE,
    ) -> None:
        """`topic`: how the topics begin whose messages are taken. `context`: of many subscribers,
        who would have threads of their own without it; it outlives them."""
        if max_message <= 0 or max_queue <= 0:
            raise ValueError("max_message and max_queue must be positive")
        self._endpoint = endpoint
        self._bind = bind
        self._max_message = max_message
        self._max_queue = max_queue
        self._topic = topic.encode()
        self._shared = context
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self.received = 0
        """Frames handed out."""
        self.damaged = 0
        """Messages dropped: wrong frames, or larger than `max_message` bytes."""

    @property
    def endpoint(self) -> str:
        """Where the socket really is: tells the port when bound to port 0 or `*`."""
        if self._socket is None or not self._bind:
            return self._endpoint
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    async def __aenter__(self) -> Self:
        context = self._shared
        if context is None:
            context = self._context = zmq.asyncio.Context()
        socket = self._socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, self._max_queue)
        if self._bind:
            socket.setsockopt(zmq.MAXMSGSIZE, HARD_LIMIT * self._max_message)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.setsockopt(zmq.IPV6, int("::" in self._endpoint or "[" in self._endpoint))
        socket.setsockopt(zmq.SUBSCRIBE, self._topic)
        try:
            if self._bind:
                socket.bind(self._endpoint)
            else:
                socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            self._close()
            verb = "listen" if self._bind else "connect"
            raise SubscribeError(
                f"cannot {verb} for KV events at {self._endpoint}: {error.strerror}"
            ) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame:
        if self._socket is None:
            raise StopAsyncIteration
        while True:
            parts: list[bytes] = await self._socket.recv_multipart()
            if (self.received + self.damaged) % BREATH == 0:
                # A message that is there already comes without a pause: a flood would starve us.
                await asyncio.sleep(0)
            try:
                if sum(map(len, parts)) > self._max_message:
                    raise DecodeError("larger than the limit")
                frame = split_frames(parts)
            except DecodeError:
                self.damaged += 1
                continue
            self.received += 1
            return frame

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._context is not None:
            self._context.destroy(linger=0)
        self._context = self._socket = None


def of_rank(endpoint: str, rank: int) -> str:
    """Where a data parallel rank publishes, if rank 0 does so at `endpoint`: TCP ports count up.

    Raises SubscribeError for an endpoint that can't be counted up.
    """
    if endpoint.startswith("inproc://"):
        return f"{endpoint}_dp{rank}"
    host, colon, port = endpoint.rpartition(":")
    if not (endpoint.startswith("tcp://") and colon and port.isdigit()):
        raise SubscribeError(f"{endpoint} has no port, so there is none for rank {rank}")
    return f"{host}:{int(port) + rank}"
