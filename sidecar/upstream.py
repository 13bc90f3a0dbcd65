"""Requests out, responses back: to the local engine, and to other sidecars of the pool."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import SimpleNamespace
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from .http.refusals import (
    BAD_HEADER,
    ENGINE_ABSENT,
    ENGINE_GARBLED,
    ENGINE_LOST,
    ENGINE_UNREACHED,
    LegError,
)
from .http.upload import Content, Upload
from .proxy import Limits
from .transfer.targets import Target

_AUTOMATIC = ("accept", "accept-encoding", "content-type", "user-agent")
"""Fields that aiohttp would add to a request that has none."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as the engine gets it."""

    method: str
    target: str
    """Path and query as they were on the wire; begins with `/`."""
    fields: list[tuple[str, str]]
    upload: Upload | Content | None


class Upstream:
    """Client of one engine. Use as an async context manager.

    Connections are reused. When a reused one turns out dead before any byte of the answer, the
    request is sent once more on a fresh one (fault D15), unless its body is no longer here.
    """

    def __init__(self, engine_url: str, limits: Limits) -> None:
        parts = urlsplit(engine_url)
        self._engine = Target(parts.hostname or "", parts.port or 80)
        self._limits = limits
        self.repeats = 0
        """Requests that were sent a second time."""

    async def __aenter__(self) -> "Upstream":
        self._pooled = self._session(
            aiohttp.TCPConnector(limit=0, keepalive_timeout=self._limits.engine_keepalive_s)
        )
        self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pooled.close()
        await self._fresh.close()

    async def send(self, call: Call) -> aiohttp.ClientResponse:
        """Send a request and wait for the response's headers; the caller closes the response.

        Raises LegError: the engine's fault, or the upload's `cause` when it was the client's.
        """
        made = SimpleNamespace(fresh=False)
        try:
            return await self._attempt(self._pooled, self._engine, call, made)
        except LegError as error:
            repeatable = call.upload is None or call.upload.repeatable
            if error.refused is not ENGINE_LOST or made.fresh or not repeatable:
                raise
        self.repeats += 1
        await asyncio.sleep(0)  # lets the first attempt's writer leave the upload
        return await self._attempt(self._fresh, self._engine, call, made)

    async def send_once(self, call: Call) -> aiohttp.ClientResponse:
        """Like `send`, on a connection of its own and never repeated, for what must not be twice.

        On a fresh connection an engine cannot have closed what it never read.
        """
        return await self._attempt(self._fresh, self._engine, call, SimpleNamespace())

    async def send_to(self, target: Target, call: Call) -> aiohttp.ClientResponse:
        """Like `send`, to another machine and never repeated."""
        return await self._attempt(self._pooled, target, call, SimpleNamespace())

    async def _attempt(
        self, session: aiohttp.ClientSession, to: Target, call: Call, made: SimpleNamespace
    ) -> aiohttp.ClientResponse:
        upload = call.upload
        try:
            return await session.request(
                call.method,
                _url(to, call.target),
                headers=call.fields,
                data=upload.pieces() if upload is not None else None,
                allow_redirects=False,
                trace_request_ctx=made,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
            raise LegError(ENGINE_ABSENT if refuses(error) else ENGINE_UNREACHED) from error
        except (aiohttp.ClientConnectionError, ConnectionError) as error:
            if upload is not None and upload.cause is not None:
                raise upload.cause from error
            raise LegError(ENGINE_LOST) from error
        except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError) as error:
            raise LegError(ENGINE_GARBLED) from error
        except ValueError as error:  # a control character or a lone surrogate in a field
            raise LegError(BAD_HEADER) from error

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(_mark_fresh)
        limits = self._limits
        return aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            max_field_size=limits.max_header_bytes,
            max_headers=limits.max_headers,
            max_line_size=limits.max_header_bytes,
            skip_auto_headers=_AUTOMATIC,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_timeout_s),
            trace_configs=[trace],
        )


def _url(to: Target, target: str) -> URL:
    """The target as it is on the wire: never normalised, never able to name another host."""
    path, _, query = target.partition("?")
    return URL.build(
        scheme="http", host=to.host, port=to.port, path=path, query_string=query, encoded=True
    )


async def _mark_fresh(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionCreateEndParams,
) -> None:
    context.trace_request_ctx.fresh = True


class BodyGuard:
    """Wakes whoever reads an answer's body when the connection under it is lost.

    aiohttp closes the connection when the framing of a body breaks (a chunk size that is no
    number), but tells nobody who waits for that body: without this it would wait for ever.
    """

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._content = answer.content
        connection = answer.connection
        protocol = None if connection is None else connection.protocol
        self._closed = None if protocol is None else protocol.closed

    def __enter__(self) -> None:
        if self._closed is None:  # all of the body is here, or all that will ever come
            self._lost()
            return
        self._closed.add_done_callback(self._lost)
        # A pooled connection lives on; the future's error must not go unread at its end.
        self._closed.remove_done_callback(_read_error)
        self._closed.add_done_callback(_read_error)

    def __exit__(self, *_: object) -> None:
        if self._closed is not None:
            self._closed.remove_done_callback(self._lost)

    def _lost(self, _: object = None) -> None:
        if not self._content.is_eof() and self._content.exception() is None:
            self._content.set_exception(aiohttp.ClientPayloadError("the connection was lost"))


def _read_error(closed: asyncio.Future[None]) -> None:
    if not closed.cancelled():
        closed.exception()


async def pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it comes. Raises LegError when it breaks off."""
    while True:
        try:
            piece = await answer.content.readany()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise LegError(ENGINE_LOST) from error
        if not piece:
            return
        yield piece


async def whole(answer: aiohttp.ClientResponse, most: int, begun: bytes = b"") -> bytes:
    """The body to its end, after what was `begun`. Raises LegError, also beyond `most` bytes."""
    body = bytearray(begun)
    async for piece in pieces(answer):
        body += piece
        if len(body) > most:
            raise LegError(ENGINE_GARBLED)
    return bytes(body)


def refuses(error: Exception) -> bool:
    """Whether nobody listens there. One that takes too long says only that all are busy."""
    return isinstance(error, aiohttp.ClientConnectorError) and isinstance(
        error.os_error, ConnectionRefusedError
    )
