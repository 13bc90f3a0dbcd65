"""Requests out, responses back: to the local engine, and to other sidecars of the pool."""

import asyncio
from types import SimpleNamespace

import aiohttp
from yarl import URL

from sidecar.http.client import Call, Head, Listener, Take, TakeChunk, engine_at
from sidecar.http.pumped import Pumped
from sidecar.http.refusals import (
    BAD_HEADER,
    ENGINE_ABSENT,
    ENGINE_GARBLED,
    ENGINE_LOST,
    ENGINE_UNREACHED,
    LegError,
)
from sidecar.proxy import Limits
from sidecar.transfer.targets import Target
from sidecar.trust.tls import PLAIN, ClientTls, Outward

_AUTOMATIC = ("accept", "accept-encoding", "content-type", "user-agent")
"""Fields that aiohttp would add to a request that has none."""


class AiohttpUpstream:
    """A `http.client.Upstream`."""

    def __init__(self, engine_url: str, limits: Limits, tls: Outward = PLAIN) -> None:
        self._engine = engine_at(engine_url)
        self._limits = limits
        self._tls = tls
        self.repeats = 0
        """Requests that were sent a second time."""

    async def __aenter__(self) -> "AiohttpUpstream":
        self._pooled = self._session(
            aiohttp.TCPConnector(limit=0, keepalive_timeout=self._limits.engine_keepalive_s)
        )
        self._fresh = self._session(aiohttp.TCPConnector(limit=0, force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pooled.close()
        await self._fresh.close()

    async def send(self, call: Call) -> "AiohttpAnswer":
        made = SimpleNamespace(fresh=False)
        try:
            return await self._attempt(self._pooled, self._engine, call, made, self._tls.engine)
        except LegError as error:
            repeatable = call.upload is None or call.upload.repeatable
            if error.refused is not ENGINE_LOST or made.fresh or not repeatable:
                raise
        await asyncio.sleep(0)  # lets the first attempt's writer leave the upload
        return await self.send_again(call)

    async def send_once(self, call: Call) -> "AiohttpAnswer":
        made = SimpleNamespace()
        return await self._attempt(self._fresh, self._engine, call, made, self._tls.engine)

    async def send_again(self, call: Call) -> "AiohttpAnswer":
        self.repeats += 1
        return await self.send_once(call)

    async def send_to(self, target: Target, call: Call, *, plain: bool = False) -> "AiohttpAnswer":
        tls = None if plain else self._tls.peers
        return await self._attempt(self._pooled, target, call, SimpleNamespace(), tls)

    def ask(self, listener: Listener, call: Call, *, once: bool) -> Pumped:
        return Pumped(self.send_once(call) if once else self.send(call), listener)

    def ask_at(self, target: Target, listener: Listener, call: Call) -> Pumped:
        return Pumped(self.send_to(target, call), listener)

    async def _attempt(
        self,
        session: aiohttp.ClientSession,
        to: Target,
        call: Call,
        made: SimpleNamespace,
        tls: ClientTls | None,
    ) -> "AiohttpAnswer":
        upload = call.upload
        try:
            answer = await session.request(
                call.method,
                _url("http" if tls is None else "https", to, call.target),
                ssl=True if tls is None else tls.current,
                server_hostname=None if tls is None else tls.name_for(to.host),
                headers=[(_text(name), _text(value)) for name, value in call.fields],
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
        return AiohttpAnswer(answer)

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


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _url(scheme: str, to: Target, target: str) -> URL:
    """The target as it is on the wire: never normalised, never able to name another host."""
    path, _, query = target.partition("?")
    return URL.build(
        scheme=scheme, host=to.host, port=to.port, path=path, query_string=query, encoded=True
    )


async def _mark_fresh(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionCreateEndParams,
) -> None:
    context.trace_request_ctx.fresh = True


class AiohttpAnswer:
    """A `http.client.Answer`. Until it is closed it watches the connection under it.

    aiohttp closes the connection when the framing of a body breaks (a chunk size that is no
    number), but tells nobody who waits for that body: without this it would wait for ever.
    """

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.head = Head(answer.status, answer.reason or "", answer.raw_headers)
        connection = answer.connection
        protocol = None if connection is None else connection.protocol
        self._closed = None if protocol is None else protocol.closed
        if self._closed is None:  # all of the body is here, or all that will ever come
            self._lost()
            return
        self._closed.add_done_callback(self._lost)
        # A pooled connection lives on; the future's error must not go unread at its end.
        self._closed.remove_done_callback(_read_error)
        self._closed.add_done_callback(_read_error)

    async def next(self) -> bytes:
        try:
            return await self._answer.content.readany()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise LegError(ENGINE_LOST) from error

    async def pump(self, take: Take, chunk: TakeChunk) -> None:
        while piece := await self.next():
            wait = take(piece)
            if wait is not None:
                await wait

    def close(self) -> None:
        if self._closed is not None:
            self._closed.remove_done_callback(self._lost)
        self._answer.close()

    def _lost(self, _: object = None) -> None:
        content = self._answer.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was lost"))


def _read_error(closed: asyncio.Future[None]) -> None:
    if not closed.cancelled():
        closed.exception()


def refuses(error: Exception) -> bool:
    """Whether nobody listens there. One that takes too long says only that all are busy."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return False  # it has no `os_error`
    return isinstance(error, aiohttp.ClientConnectorError) and isinstance(
        error.os_error, ConnectionRefusedError
    )
