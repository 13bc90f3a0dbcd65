"""What connections to clients and to engines have in common: how they read on, and how they write.

What is written waits until all that one turn of the loop brings is seen to. Sent at once it would
wake its reader, who takes the processor: every message of the turn would find caches cold. Pieces
for one connection leave together.
"""

import asyncio
from typing import cast

from sidecar.http.client import Wait

AT_ONCE = 64 << 10
"""So much is sent without waiting for the turn's end: it is not copied once more."""


class Outlet:
    """Sends at the end of a turn of the loop what its connections have written. One for a loop."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Connection] = []

    def add(self, connection: "Connection") -> None:
        """It has something to send."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(connection)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.flush()


class Connection(asyncio.Protocol):
    """One connection, of whichever side."""

    _transport: asyncio.Transport

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._unsent: list[bytes] = []
        self._drained: asyncio.Future[None] | None = None
        self._reading = True
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, _: Exception | None) -> None:
        self.lost = True
        self._unsent.clear()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def read_on(self, reads: bool, /) -> None:
        """Whether bytes that come are wanted at present."""
        if reads is self._reading or self.lost or self._transport.is_closing():
            return
        self._reading = reads
        if reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def write(self, data: bytes) -> Wait:
        """Send this in its turn. Returns what has to be waited for before more is written."""
        unsent = self._unsent
        if not unsent:
            self._outlet.add(self)
        unsent.append(data)
        if len(data) >= AT_ONCE:
            self.flush()
        return self._drained

    def close(self) -> None:
        """End the connection; what was written still arrives."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once; what was not sent is lost."""
        self._unsent.clear()
        self._transport.abort()

    def flush(self) -> None:
        """Send what was written, without waiting for the turn's end."""
        unsent = self._unsent
        if not unsent:
            return
        self._unsent = []
        if self._transport.is_closing():
            return
        if len(unsent) == 1:
            self._transport.write(unsent[0])
        else:
            self._transport.writelines(unsent)
