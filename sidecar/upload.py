"""One request body on its way to the engine: counted, and repeatable while it is small."""

from collections.abc import AsyncIterator, Callable

from aiohttp import StreamReader
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

from .refusals import BAD_BODY, TOO_LARGE, LegError


class Upload:
    """A body that is read once from the client and may be sent twice.

    After a failed send, `cause` says whether the client was to blame.
    """

    def __init__(
        self,
        source: StreamReader,
        *,
        limit: int,
        replay_limit: int,
        progress: Callable[[], None],
    ) -> None:
        self._source = source
        self._left = limit
        self._replay_limit = replay_limit
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
            piece = await self._next()
            if not piece:
                return
            self._progress()
            yield piece

    async def _next(self) -> bytes:
        try:
            piece = await self._source.readany()
        except (OSError, RequestPayloadError, HttpProcessingError) as error:
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
        if self._replay_size > self._replay_limit:
            self._replay = None
        elif piece:
            self._replay.append(piece)
