"""Small questions to the local engine: its health, its metrics page, its models."""

import asyncio
from urllib.parse import urlsplit

from epp.errors import EppError

from .http.client import Call, Whole, engine_at, whole
from .http.refusals import ENGINE_ABSENT, ENGINE_GARBLED, LegError
from .proxy import Limits
from .relay.pool import Engines
from .trust.tls import ClientTls, Outward

_MOVED = {301, 302, 307, 308}


class ProbeError(EppError):
    """The engine did not answer in time, or not in HTTP, or too much."""

    reason = "probe"

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused
        """Its port refuses connections: it is not there."""


class Probes:
    """Asks one engine, over connections that are used again. An async context manager."""

    def __init__(self, engine_url: str, limit_s: float, tls: ClientTls | None = None) -> None:
        """`limit_s` is for one question, its answer included."""
        self._host = str(engine_at(engine_url)).encode()
        self._limit_s = limit_s
        self._engines = Engines(engine_url, Limits(connect_timeout_s=limit_s), Outward(engine=tls))

    async def __aenter__(self) -> "Probes":
        await self._engines.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engines.__aexit__()

    async def get(self, path: str, most: int) -> Whole:
        """The answer; one that sends us to another path of the engine is followed once.

        Raises ProbeError, also when the body has more than `most` bytes.
        """
        try:
            async with asyncio.timeout(self._limit_s):
                found = await self._asked(path, most)
                if found.head.status in _MOVED:
                    to = urlsplit(found.head.value("location"))
                    if to.path and to.netloc.encode() in {b"", self._host}:
                        found = await self._asked(to.path, most)
                return found
        except TimeoutError as error:
            raise ProbeError(f"no answer within {self._limit_s} s") from error
        except LegError as error:
            raise ProbeError(str(error), refused=error.refused is ENGINE_ABSENT) from error

    async def _asked(self, path: str, most: int) -> Whole:
        fields = [(b"host", self._host), (b"accept", b"*/*")]
        answer = await self._engines.send(Call("GET", path, fields, None))
        try:
            return Whole(answer.head, await whole(answer, most, LegError(ENGINE_GARBLED)))
        finally:
            answer.close()
