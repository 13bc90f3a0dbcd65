"""Says KV events again to whoever missed them, as vLLM's replay socket does.

A ROUTER socket: `["", first sequence]` is answered by one message for each batch that is still
kept, `["", topic, sequence, payload]`, and by one with sequence -1 and nothing in it.
"""

import asyncio
from typing import Self

import zmq
import zmq.asyncio

from .publisher import Publisher

END = b"\xff" * 8
QUESTION_FRAMES = 3
"""Who asks, an empty frame, and the sequence as 8 bytes, big-endian."""
BREATH = 64
"""Messages after which other tasks get their turn."""


class Replays:
    """One socket beside one publisher. Use as an async context manager."""

    def __init__(self, endpoint: str, publisher: Publisher) -> None:
        """`endpoint` is bound; a port of 0 takes a free one. Raises ZMQError on entry."""
        self.endpoint = endpoint
        self._publisher = publisher
        self._context = zmq.asyncio.Context()
        self._tasks = asyncio.TaskGroup()
        self.unread = 0
        """Questions that were none."""

    async def __aenter__(self) -> Self:
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(self.endpoint)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        await self._tasks.__aenter__()
        self._answering = self._tasks.create_task(self._serve(), name="replays")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._answering.cancel()
        await self._tasks.__aexit__(None, None, None)
        self._context.destroy(linger=0)

    async def _serve(self) -> None:
        while True:
            asked = await self._socket.recv_multipart()
            if len(asked) == QUESTION_FRAMES and len(asked[2]) == len(END):
                await self._answer(asked[0], int.from_bytes(asked[2], "big"))
            else:
                self.unread += 1

    async def _answer(self, asker: bytes, start: int) -> None:
        topic = self._publisher.topic
        for count, (sequence, payload) in enumerate(self._publisher.since(start)):
            await self._socket.send_multipart(
                [asker, b"", topic, sequence.to_bytes(8, "big"), payload]
            )
            if count % BREATH == 0:
                await asyncio.sleep(0)
        await self._socket.send_multipart([asker, b"", topic, END, b""])
