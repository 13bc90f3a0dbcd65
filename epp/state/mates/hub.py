"""The first worker's side: it hosts the embedded store, and passes it on to the others.

A line that takes nothing for so long that `QUEUED_BYTES` wait is cut. It comes back by itself, and
whenever a line is new the sidecars are asked for their full state, by cutting their connections:
they are back within moments, and so everybody begins with all there is.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import cast

from epp.errors import StoreError
from epp.framework import EndpointId
from epp.state.store import OneStream
from epp.state.store.frames import FrameBuffer, frame
from epp.state.store.memory import StateServer
from epp.state.sums import ReplicaSums, SumsError

from .board import Board
from .wire import heard, said

QUEUED_BYTES = 64 << 20
MOST_LINES = 64


class Hub(OneStream):
    """A Reader and a SumsBoard for this worker, and the other ends of the others'.

    `counts` has `lines` that came, and those that were `slow`, `damaged` or too many (`full`).
    """

    def __init__(self, server: StateServer, path: Path, *, clock: Callable[[], float]) -> None:
        self.server = server
        self.counts: Counter[str] = Counter()
        self._path = path
        self._board = Board(clock)
        self._lines: set[_Line] = set()
        self._listening: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen for sidecars and for the other workers. Raises OSError."""
        await self.server.start()
        self._path.unlink(missing_ok=True)  # of a first worker that died
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_unix_server(lambda: _Line(self), str(self._path))

    @property
    def connected(self) -> bool:
        return self.server.connected

    @property
    def listening_since(self) -> float | None:
        return self.server.listening_since

    @property
    def happened(self) -> Mapping[str, int]:
        return self.server.happened

    @property
    def held(self) -> Mapping[str, int]:
        return self.server.held

    @property
    def behind_s(self) -> float:
        return self.server.behind_s

    def reread(self, endpoints: Iterable[EndpointId]) -> None:
        self.server.reread(endpoints)

    async def records(self) -> AsyncIterator[list[bytes]]:
        async for records in self.server.records():
            if self._lines:
                data = b"".join(map(frame, records))
                for line in list(self._lines):
                    line.send(data)
            yield records

    async def publish(self, sums: ReplicaSums) -> None:
        data = said(sums)
        for line in list(self._lines):
            line.send(data)

    async def others(self) -> list[ReplicaSums]:
        return self._board.believed()

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
            for line in list(self._lines):
                line.cut()
        await self.server.close()

    # Called by lines

    def opened(self, line: "_Line") -> bool:
        if len(self._lines) >= MOST_LINES:
            self.counts["full"] += 1
            return False
        self._lines.add(line)
        self.counts["lines"] += 1
        self.server.ask_again()
        return True

    def lost(self, line: "_Line") -> None:
        self._lines.discard(line)

    def told(self, line: "_Line", sums: ReplicaSums) -> None:
        """A worker's sums: for us and for all others."""
        self._board.take(sums)
        data = said(sums)
        for other in self._lines - {line}:
            other.send(data)


class _Line(asyncio.Protocol):
    """One other worker. No task: it lives by its transport's calls."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave alike without being subclasses
        self._transport = cast("asyncio.Transport", transport)
        if not self._hub.opened(self):
            self.cut()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                sums = heard(message)
                if sums is not None:
                    self._hub.told(self, sums)
        except (StoreError, SumsError):
            self._hub.counts["damaged"] += 1
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hub.lost(self)
        self._transport = None

    def send(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > QUEUED_BYTES:
            self._hub.counts["slow"] += 1
            self.cut()
            return
        self._transport.write(data)

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()
