"""An engine that publishes KV events and says them again when asked, as vLLM does."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import zmq
import zmq.asyncio

from epp.state.events import END_OF_REPLAY

from .kv_publisher import Publisher, payload


class ReplayingPublisher(Publisher):
    """`with_topic` is the reply's layout of later engines; `most` messages are kept."""

    def __init__(self, *, with_topic: bool = True, most: int = 10_000) -> None:
        super().__init__()
        self._replies = zmq.asyncio.Context()
        self._router = self._replies.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.setsockopt(zmq.SNDHWM, 0)
        self._router.bind("tcp://127.0.0.1:*")
        self._with_topic = with_topic
        self._most = most
        self.kept: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        self.silent = False
        """Take questions and don't answer."""

    @property
    def replay_endpoint(self) -> str:
        return self._router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ReplayingPublisher"]:
        async with self, asyncio.TaskGroup() as tg:
            answering = tg.create_task(self._answer())
            try:
                yield self
            finally:
                answering.cancel()
                self._replies.destroy(linger=0)

    async def send(self, events: Sequence[Any]) -> None:
        self.keep(events)
        seq, data = self.kept[-1]
        await self.send_raw([b"kv", seq.to_bytes(8, "big"), data])

    def keep(self, events: Sequence[Any]) -> None:
        """A message that nobody hears, but that is in the buffer."""
        self.kept = [*self.kept, (self.seq, payload(events))][-self._most :]
        self.seq += 1

    def restart(self) -> None:
        """A new life: nothing is kept, and the sequence begins at 0."""
        self.kept, self.seq = [], 0

    async def _answer(self) -> None:
        while True:
            who, _, start = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if self.silent:
                continue
            for seq, data in self.kept:
                if seq >= self.asked[-1]:
                    await self._reply(who, seq.to_bytes(8, "big"), data)
            await self._reply(who, END_OF_REPLAY, b"")

    async def _reply(self, who: bytes, seq: bytes, data: bytes) -> None:
        topic = [b"kv"] if self._with_topic else []
        await self._router.send_multipart([who, b"", *topic, seq, data])
