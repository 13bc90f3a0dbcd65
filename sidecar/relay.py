"""The relay on aiohttp: server towards the client, `upstream` towards the engine.

Both bodies pass as they come and unchanged. An answer that the engine broke off is never ended
cleanly: the client's connection is cut, so that it cannot take a part for the whole.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable

import aiohttp
import msgspec
import structlog
from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from . import headers, refusals
from .exchange import Exchange
from .proxy import Journal, Limits, Outcome, Readiness
from .refusals import LegError, Refused
from .upload import Upload
from .upstream import BodyGuard, Call, Upstream

_QUIET = logging.getLogger("sidecar.relay.http")
_QUIET.setLevel(logging.CRITICAL)  # a client's bad request gets an answer, not a stack trace
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

OUTCOMES = {
    refusals.ENGINE_ABSENT: Outcome.ENGINE_GONE,
    refusals.ENGINE_LOST: Outcome.ENGINE_GONE,
    refusals.ENGINE_SILENT: Outcome.ENGINE_GONE,
    refusals.BAD_BODY: Outcome.CLIENT_GONE,
    refusals.UPLOAD_STALLED: Outcome.CLIENT_GONE,
}
"""Every other refusal is an error answer."""

LINGER_S = 2.0
"""How long to read on from a client that was answered before its body had ended."""

log = structlog.get_logger(__name__)


class AiohttpRelay:
    """A `proxy.Relay`. Give it to one event loop; `start` it once."""

    def __init__(
        self,
        *,
        host: str | None,
        port: int,
        engine_url: str,
        journal: Journal,
        refusing: Readiness,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._host, self._port = host, port
        self._journal = journal
        self._refusing = refusing
        self._limits = limits
        self._clock = clock
        self._upstream = Upstream(engine_url, limits)
        self._in_flight = 0
        self._runner: web.ServerRunner | None = None

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def repeats(self) -> int:
        """Requests that were sent to the engine a second time, on a fresh connection."""
        return self._upstream.repeats

    async def start(self) -> int:
        await self._upstream.__aenter__()
        loop = asyncio.get_running_loop()
        limits = self._limits
        server = web.Server(
            self._handle,
            request_factory=lambda message, payload, protocol, writer, task: _Incoming(
                message, payload, protocol, writer, task, loop
            ),
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            lingering_time=LINGER_S,
            logger=_QUIET,
            max_field_size=limits.max_header_bytes,
            max_headers=limits.max_headers,
            max_line_size=limits.max_header_bytes,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
        try:
            await site.start()
        except OSError:
            await self.close()
            raise
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        await self._upstream.__aexit__()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve one request. Every path of an exchange ends in the journal, exactly once."""
        if request.path == "/health" and request.method in {"GET", "HEAD"}:
            return self._health()
        exchange = Exchange(request, self._clock())
        self._in_flight += 1
        try:
            return await self._serve(request, exchange)
        except ConnectionError:  # the client's connection broke while we wrote to it
            exchange.outcome = Outcome.CLIENT_GONE
            raise
        except Exception:  # edge of the task: one request fails, the sidecar goes on
            log.exception("a request failed inside the sidecar")
            exchange.outcome = Outcome.ENGINE_ERROR
            _cut(request, self._limits.flush_s)
            return web.Response(status=500)
        finally:
            self._in_flight -= 1
            self._journal.ended(exchange.ended(self._clock()))

    def _health(self) -> web.Response:
        reason = self._refusing()
        body = {"status": "ready"} if reason is None else {"status": "not ready", "reason": reason}
        return web.Response(
            status=200 if reason is None else 503,
            body=msgspec.json.encode(body),
            headers={"content-type": "application/json"},
        )

    def _check(self, request: web.BaseRequest) -> None:
        """Raise LegError for a request that must not reach the engine."""
        expected = request.headers.get("expect")
        declared = request.content_length
        if request.method == "CONNECT":
            raise LegError(refusals.NO_TUNNEL)
        if headers.asks_for_upgrade(request.raw_headers):
            raise LegError(refusals.NO_UPGRADE)
        if not request.raw_path.startswith("/"):
            raise LegError(refusals.BAD_TARGET)
        if expected is not None and expected.lower() != "100-continue":
            raise LegError(refusals.BAD_EXPECT)
        if declared is not None and declared > self._limits.max_body_bytes:
            raise LegError(refusals.TOO_LARGE)
        if self._in_flight > self._limits.max_in_flight:
            raise LegError(refusals.TOO_MANY)

    async def _serve(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        reply: _Reply | None = None
        try:
            self._check(request)
            await _continue_if_asked(request)
            async with asyncio.timeout(self._limits.idle_timeout_s) as idle:
                progress = self._postpone(idle)
                answer = await self._ask(request, progress)
                try:
                    if answer.status < 200 or not headers.is_fit(answer.raw_headers):
                        raise LegError(refusals.ENGINE_GARBLED)
                    reply = _Reply(request, answer)
                    with BodyGuard(answer):
                        await self._pass_on(request, exchange, answer, reply, progress)
                finally:
                    answer.close()
        except TimeoutError:
            return self._failed(request, exchange, reply, refusals.ENGINE_SILENT)
        except LegError as error:
            return self._failed(request, exchange, reply, error.refused)
        return reply

    async def _ask(
        self, request: web.BaseRequest, progress: Callable[[], None]
    ) -> aiohttp.ClientResponse:
        upload = None
        if request.body_exists:
            upload = Upload(request.content, self._limits, progress)
        fields = headers.for_engine(request.raw_headers)
        return await self._upstream.send(Call(request.method, request.raw_path, fields, upload))

    async def _pass_on(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        answer: aiohttp.ClientResponse,
        reply: "_Reply",
        progress: Callable[[], None],
    ) -> None:
        """Hand the answer to the client as it comes. Raises LegError when it breaks off."""
        fields = answer.headers
        exchange.answered(
            answer.status, fields.get("content-type", ""), fields.get("content-encoding", "")
        )
        await reply.prepare(request)
        progress()
        while True:
            try:
                piece = await answer.content.readany()
            except (aiohttp.ClientError, ConnectionError) as error:
                raise LegError(refusals.ENGINE_LOST) from error
            if not piece:
                break
            ttft_s = exchange.piece(piece, self._clock())
            if ttft_s is not None and exchange.decision_id and answer.status < 400:
                self._journal.first_token(exchange.decision_id, ttft_s)
            await reply.write(piece)
            progress()
        await reply.write_eof()
        exchange.completed()

    def _postpone(self, idle: asyncio.Timeout) -> Callable[[], None]:
        """A call that says "a byte moved": the idle timeout starts anew."""
        loop = asyncio.get_running_loop()
        limit = self._limits.idle_timeout_s
        return lambda: None if idle.expired() else idle.reschedule(loop.time() + limit)

    def _failed(
        self,
        request: web.BaseRequest,
        exchange: Exchange,
        reply: "_Reply | None",
        refused: Refused,
    ) -> web.StreamResponse:
        """The exchange cannot go on: an answer of our own if there is none yet, else a cut."""
        if refused is refusals.ENGINE_ABSENT:
            self._journal.engine_refused()
        elif refused is refusals.ENGINE_LOST:
            self._journal.engine_suspect()
        outcome = OUTCOMES.get(refused, Outcome.ENGINE_ERROR)
        if reply is None or not reply.prepared:
            return exchange.refuse(refused, outcome)
        exchange.outcome = outcome
        _cut(request, self._limits.flush_s)
        return reply


class _Reply(web.StreamResponse):
    """The engine's answer on its way to the client: its status and its fields, no others."""

    def __init__(self, request: web.BaseRequest, answer: aiohttp.ClientResponse) -> None:
        fields = CIMultiDict(headers.for_client(answer.raw_headers))
        super().__init__(status=answer.status, reason=answer.reason or "", headers=fields)
        self.added = {"server", "content-type"} - {name.lower() for name in fields}
        if request.version < HttpVersion11 and self.content_length is None:
            self.force_close()  # only the end of the connection ends such a body


class _Incoming(web.BaseRequest):
    """A request to whose answer aiohttp adds nothing but `Date`."""

    async def _prepare_hook(self, resp: web.StreamResponse) -> None:
        for name in resp.added if isinstance(resp, _Reply) else ("server",):
            resp.headers.popall(name, None)


async def _continue_if_asked(request: web.BaseRequest) -> None:
    """Meet `Expect: 100-continue` ourselves: an engine that ignores it must not stall a client."""
    if request.version >= HttpVersion11 and "expect" in request.headers and request.body_exists:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


def _cut(request: web.BaseRequest, flush_s: float) -> None:
    """End the client's connection so that it notices: unfinished framing, or a reset."""
    transport = request.transport
    if transport is None:
        return
    if request.version < HttpVersion11:
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()
        return
    transport.close()  # what was written before still arrives, the final chunk never does
    asyncio.get_running_loop().call_later(flush_s, transport.abort)
