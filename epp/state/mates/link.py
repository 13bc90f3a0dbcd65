"""Another worker's side: what it hears of the embedded store, from the first one.

While the first worker is away (it is being started again) nothing is heard, and decisions go on by
what is known; the link comes back by itself.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from pathlib import Path

from epp.errors import StoreError
from epp.framework import EndpointId
from epp.state.store import OneStream
from epp.state.store.abreast import LOOK_S, Abreast
from epp.state.store.frames import FrameBuffer
from epp.state.sums import ReplicaSums, SumsError

from .board import Board
from .wire import heard, said

PAUSE_S = 0.1
READ_BYTES = 1 << 18


class Link(OneStream):
    """A Reader and a SumsBoard. `counts` has `connected` and `lost`."""

    def __init__(self, path: Path, *, clock: Callable[[], float], rng: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self._path = path
        self._board = Board(clock)
        self._rng = rng
        self._up: asyncio.StreamWriter | None = None
        self._behind_s = 0.0
        self.listening_since: float | None = None

    @property
    def connected(self) -> bool:
        return self._up is not None

    @property
    def behind_s(self) -> float:
        """What came while this process stood still."""
        return self._behind_s

    def reread(self, endpoints: Iterable[EndpointId]) -> None:
        """Nothing to do: records are lost with a line, and a new line begins with all there is."""

    async def records(self) -> AsyncIterator[list[bytes]]:
        while True:
            try:
                down, self._up = await asyncio.open_unix_connection(str(self._path))
            except OSError:
                await asyncio.sleep(PAUSE_S * self._rng.uniform(0.5, 1.5))
                continue
            self.counts["connected"] += 1
            self.listening_since = asyncio.get_running_loop().time()
            try:
                async for records in self._messages(down):
                    yield records
            except (OSError, StoreError, SumsError):
                self.counts["lost"] += 1
            finally:
                self._hang_up()

    async def publish(self, sums: ReplicaSums) -> None:
        """Raises StoreError while there is no line."""
        if self._up is None:
            raise StoreError("the first worker is away")
        self._up.write(said(sums))
        await self._up.drain()

    async def others(self) -> list[ReplicaSums]:
        """Raises StoreError while there is no line."""
        if self._up is None:
            raise StoreError("the first worker is away")
        return self._board.believed()

    async def close(self) -> None:
        self._hang_up()

    async def _messages(self, down: asyncio.StreamReader) -> AsyncIterator[list[bytes]]:
        """The records of each piece that arrives, until the line ends."""
        loop, frames = asyncio.get_running_loop(), FrameBuffer()
        abreast = Abreast(loop.time())
        while not down.at_eof():
            data = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    data = await down.read(READ_BYTES)
            self._behind_s = abreast.looked(loop.time(), found=bool(data))
            records: list[bytes] = []
            for message in frames.feed(data):
                sums = heard(message)
                if sums is None:
                    records.append(message)
                else:
                    self._board.take(sums)
            if records:
                yield records

    def _hang_up(self) -> None:
        if self._up is not None:
            self._up.close()
            self._up = None
            self.listening_since = None
