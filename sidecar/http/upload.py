"""Request bodies on their way to the engine: counted, and repeatable while they are small."""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from sidecar.proxy import Limits

from .refusals import BAD_BODY, TOO_LARGE, UPLOAD_STALLED, LegError


class Source(Protocol):
    """Where a body comes from; see `client.Client`."""

    async def readany(self) -> bytes: ...


class Upload:
    """A body that is read once from the client and may be sent twice.

    After a failed send, `cause` says whether the client was to blame.
    """

    def __init__(self, source: Source, limits: Limits, progress: Callable[[], None]) -> None:
        self._source = source
        self._left = limits.max_body_bytes
        self._most_kept = limits.replay_bytes
        self._replay: list[bytes] | None = []
        self._replay_size = 0
        self._progress = progress
        self.cause: LegError | None = None

    @property
    def repeatable(self) -> bool:
        """Whether all that was read so far is still here."""
        return self._replay is not None

    async def pieces(self) -> AsyncIterator[bytes]:
        """The whole body from its beginning. Only one iteration may be active at a time."""
        for piece in self._replay or ():
            yield piece
        while True:
            piece = await self.next()
            if not piece:
                return
            self._progress()
            yield piece

    async def next(self) -> bytes:
        """What comes next from the client, empty at its end. Raises LegError."""
        try:
            piece = await self._source.readany()
        except TimeoutError as error:
            self.cause = LegError(UPLOAD_STALLED)
            raise self.cause from error
        except OSError as error:
            self.cause = LegError(BAD_BODY)
            raise self.cause from error
        self._left -= len(piece)
        if self._left < 0:
            self.cause = LegError(TOO_LARGE)
            raise self.cause
        self._keep(piece)
        return piece

    def _keep(self, piece: bytes) -> None:
        if self._replay is None:
            return
        self._replay_size += len(piece)
        if self._replay_size > self._most_kept:
            self._replay = None
        elif piece:
            self._replay.append(piece)


class Content:
    """A body that is here already: it can be sent again and again."""

    PIECE = 256 << 10

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.cause: LegError | None = None
        self.repeatable = True

    async def pieces(self) -> AsyncIterator[bytes]:
        """The whole body, in pieces that leave the event loop to others."""
        for start in range(0, len(self.body), self.PIECE):
            yield self.body[start : start + self.PIECE]
