"""One request on a client's connection, and its answer: a `http.client.Client`."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

from sidecar.http.client import Wait
from sidecar.http.headers import Fields
from sidecar.http.incoming import Incoming

from . import framing
from .framing import Frame

HELD = 256 << 10
"""Bytes of a body that wait to be read before the client is not read on."""
_JSON = [(b"Content-Type", b"application/json")]


class Wire(Protocol):
    """What a turn needs of its connection."""

    @property
    def lost(self) -> bool: ...

    def send(self, data: bytes) -> Wait:
        """Raises ConnectionError when the connection is gone."""

    def write(self, data: bytes, /) -> Wait:
        """The same where whoever writes is told of the connection's end; nobody gets it then."""

    def want(self, *, more: bool) -> None:
        """Whether bytes of the body are wanted at present."""

    def date(self) -> bytes:
        """The `Date` field of this second."""

    def soon(self, call: Callable[[], None]) -> None:
        """Call this when all that came at once is seen to."""

    def cut(self, *, reset: bool) -> None: ...


class Turn:
    """A request being served. Its connection feeds it the body and asks it at the end whether
    another request may follow.
    """

    __slots__ = (
        "_error",
        "_frame",
        "_held",
        "_pieces",
        "_unsent",
        "_waiter",
        "_wire",
        "begun",
        "complete",
        "deadline",
        "ended",
        "incoming",
        "keeps",
    )

    def __init__(self, wire: Wire, incoming: Incoming, *, keeps: bool) -> None:
        self.incoming = incoming
        self.begun = False
        self.complete = False
        """Whether the whole request is here."""
        self.ended = False
        """Whether the whole answer was written."""
        self.keeps = keeps
        """Whether another request may follow on the connection."""
        self.deadline = float("inf")
        """When the next bytes of the body have to be here; asked for by the connection's sweep."""
        self._wire = wire
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._frame = Frame.NONE
        self._unsent = b""  # a head that waits for the first data

    # --- the request's body

    def piece(self, data: bytes) -> None:
        """The next bytes came."""
        self._pieces.append(data)
        self._held += len(data)
        if self._held > HELD:
            self._wire.want(more=False)
        self._wake()

    def finish(self) -> None:
        """The request is complete."""
        self.complete = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """The rest of the body will not come."""
        self._error = error
        self._wake()

    def whole(self) -> bytes:
        """All of a short body that is here; `readany` gives it once more."""
        pieces = self._pieces
        if not pieces:
            return b""
        if len(pieces) > 1:
            self._pieces = pieces = deque((b"".join(pieces),))
        return pieces[0]

    async def readany(self) -> bytes:
        while not self._pieces:
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            self.deadline = float("inf")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        full, self._held = self._held > HELD, 0
        if full:
            self._wire.want(more=True)
        return data

    @property
    def waits(self) -> bool:
        """Whether somebody waits for bytes of the body."""
        return self._waiter is not None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- the answer

    def proceed(self) -> Wait:
        return self._wire.send(framing.CONTINUE)

    def begin(
        self, status: int, reason: str, fields: Fields, length: int | None, *, follows: bool = False
    ) -> Wait:
        incoming = self.incoming
        frame = framing.frame_of(status, incoming.method, length, http11=incoming.http11)
        if frame is Frame.UNTIL_CLOSE:
            self.keeps = False
        self._frame = frame
        self.begun = True
        self._unsent = framing.answer_head(
            status,
            reason,
            fields,
            frame=frame,
            length=length,
            date=self._wire.date(),
            close=not self.keeps,
        )
        if not follows:
            self._wire.soon(self.flush)  # alone, unless data follows all the same
        return None

    def write(self, data: bytes) -> Wait:
        if self._frame is Frame.CHUNKS:
            return self._send(framing.chunk(data))
        return None if self._frame is Frame.NONE else self._send(data)

    def relay(self, data: bytes) -> Wait | Literal[False]:
        if self._frame is not Frame.CHUNKS or self._unsent:
            return False
        return self._wire.write(data)

    def answer(self, status: int, reason: str, lines: bytes, body: bytes, *, dated: bool) -> Wait:
        self.begun = self.ended = True
        date = None if dated else self._wire.date()
        head = framing.whole_head(
            status, reason, lines, length=len(body), date=date, close=not self.keeps
        )
        return self._wire.send(head + body)

    def end(self) -> Wait:
        self.ended = True
        return self._send(framing.LAST_CHUNK if self._frame is Frame.CHUNKS else b"")

    def flush(self) -> None:
        """Send a head to which no data came."""
        if self._unsent and not self._wire.lost:
            self._send(b"")

    def _send(self, data: bytes) -> Wait:
        head, self._unsent = self._unsent, b""
        if head:
            data = head + data
        return self._wire.send(data) if data else None

    def own(self, status: int, body: bytes, *, close: bool = False) -> None:
        if self._wire.lost:
            return
        self.keeps = self.keeps and self.complete and not close
        self.begin(status, _REASONS.get(status, "Error"), _JSON, len(body), follows=True)
        self.write(body)
        self.end()

    def cut(self) -> None:
        self.keeps = False
        self.flush()
        self._wire.cut(reset=not self.incoming.http11)


_REASONS = {
    200: "OK",
    400: "Bad Request",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
