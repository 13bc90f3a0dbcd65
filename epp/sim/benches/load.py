"""A client for benchmarks: so cheap itself that it does not disturb what is measured."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

import httptools


@dataclass(slots=True)
class Tally:
    """What was answered, and when pieces of bodies came."""

    answered: int = 0
    failed: int = 0
    gaps: list[float] = field(default_factory=list[float])
    """Seconds between two pieces of one answer."""
    events: int = 0
    """Events of streams that have come so far."""


class Caller(asyncio.Protocol):
    """One connection that sends the same request until `left` are sent by all."""

    def __init__(self, request: bytes, left: list[int], tally: Tally) -> None:
        """`left` holds one number, which all connections count down."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._left = left
        self._tally = tally
        self._last = 0.0
        self._waits = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._next()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self._last:
            self._tally.gaps.append(now - self._last)
        self._last = now
        self._tally.events += data.count(b"\n\n")
        self._parser.feed_data(data)

    def connection_lost(self, _: Exception | None) -> None:
        if self._waits:
            self._tally.failed += 1
        if not self.over.done():
            self.over.set_result(None)

    def on_message_complete(self) -> None:
        self._waits = False
        good = self._parser.get_status_code() == 200
        self._tally.answered += good
        self._tally.failed += not good
        self._next()

    def _next(self) -> None:
        if not self._left[0]:
            self._transport.close()
            return
        self._left[0] -= 1
        self._last = 0.0
        self._waits = True
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(self._request)


async def call(
    port: int, request: bytes, *, count: int, at_once: int, tally: Tally | None = None
) -> Tally:
    """Send a request `count` times, `at_once` at a time, each connection used again. `tally` is
    what is counted in, for whoever looks meanwhile."""
    tally, left = tally or Tally(), [count]
    loop = asyncio.get_running_loop()
    callers = [
        (await loop.create_connection(lambda: Caller(request, left, tally), "127.0.0.1", port))[1]
        for _ in range(at_once)
    ]
    await asyncio.gather(*(caller.over for caller in callers))
    return tally
