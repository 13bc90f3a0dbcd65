"""Ask an engine's publisher to say messages again: a thin shell, all policy is in `sequencer`.

One socket a replay: what a broken one left behind must not run into the next.
"""

import asyncio
from collections.abc import AsyncGenerator

import zmq
import zmq.asyncio

from epp.errors import EppError

from .events import MAX_PAYLOAD, DecodeError, Frame, split_reply

IDLE_S = 2.0
"""Longest silence between two messages of a replay."""
WHOLE_S = 120.0
"""Longest replay."""
BREATH = 8
"""Messages after which other tasks get their turn: a whole cache comes at once."""
MAX_MESSAGES = 200_000
"""Of one replay; vLLM keeps 10,000."""


class ReplayError(EppError):
    """A replay that broke off: nobody answers, or what comes is no replay."""

    reason = "kv-replay"


async def fetch(
    endpoint: str,
    start: int,
    *,
    idle_s: float = IDLE_S,
    whole_s: float = WHOLE_S,
    max_message: int = MAX_PAYLOAD,
    max_messages: int = MAX_MESSAGES,
) -> AsyncGenerator[Frame, None]:
    """Messages from sequence `start` on, as far as the engine still has them, in order.

    Ends where the engine says so. Raises ReplayError.
    """
    context = zmq.asyncio.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        # The engine's side drops what ours has no room for.
        socket.setsockopt(zmq.RCVHWM, max_messages)
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        try:
            socket.connect(endpoint)
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
        except zmq.ZMQError as error:
            raise ReplayError(f"cannot ask {endpoint} for a replay: {error.strerror}") from error
        deadline = asyncio.get_running_loop().time() + whole_s
        for count in range(max_messages):
            frame = await _next(socket, min(deadline, asyncio.get_running_loop().time() + idle_s))
            if frame is None:
                return
            if len(frame.payload) > max_message:
                raise ReplayError(f"a message of {len(frame.payload)} bytes in a replay")
            yield frame
            if count % BREATH == 0:
                await asyncio.sleep(0)
        raise ReplayError(f"more than {max_messages} messages in a replay")
    finally:
        context.destroy(linger=0)


async def _next(socket: zmq.asyncio.Socket, deadline: float) -> Frame | None:
    try:
        async with asyncio.timeout_at(deadline):
            return split_reply(await socket.recv_multipart())
    except TimeoutError as error:
        raise ReplayError("the engine fell silent in a replay") from error
    except DecodeError as error:
        raise ReplayError(f"what the engine says is no replay: {error}") from error
