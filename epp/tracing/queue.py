"""Keeps spans until they are sent, and sends them by the batch. No request waits for it."""

import asyncio
from collections import deque
from contextlib import suppress

from .sender import Sender, open_sender
from .spans import Span

MAX_WAITING = 2048
"""Spans that wait to be sent; of more than these the oldest are lost."""
BATCH = 512
"""Spans that are sent at once."""
PAUSE_S = 1.0
"""Longest time that a span waits for others."""


class SpanQueue:
    """The `spans.Listener` of a process that sends its traces. `run` in a task."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._waiting: deque[Span] = deque(maxlen=MAX_WAITING)
        self._many = asyncio.Event()
        self._sending = asyncio.Lock()
        self.sent = 0
        self.lost = 0
        """Spans that found no room, or did not arrive."""

    def __len__(self) -> int:
        """Spans that wait."""
        return len(self._waiting)

    def take(self, span: Span) -> None:
        self.lost += len(self._waiting) == MAX_WAITING
        self._waiting.append(span)
        if len(self._waiting) >= BATCH:
            self._many.set()

    async def run(self) -> None:
        """Send what comes, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._many.wait()
            await self.flush()

    async def flush(self) -> None:
        """Send all that waits."""
        async with self._sending:
            self._many.clear()
            while self._waiting:
                await self._send([self._waiting.popleft() for _ in range(self._next)])

    @property
    def _next(self) -> int:
        return min(BATCH, len(self._waiting))

    async def _send(self, batch: list[Span]) -> None:
        arrived = False
        try:
            arrived = await asyncio.to_thread(self._sender.send, batch)
        finally:
            self.sent += len(batch) * arrived
            self.lost += len(batch) * (not arrived)

    async def close(self, within_s: float) -> None:
        """Send what waits if that is possible in this time, and nothing any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.flush()
        self._sender.close()


def open_queue(endpoint: str | None, service: str) -> SpanQueue | None:
    """Where the spans of a service go; None where traces are not asked for. Raises ConfigError."""
    return None if endpoint is None else SpanQueue(open_sender(endpoint, service))
