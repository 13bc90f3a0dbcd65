"""The relay on aiohttp: server towards the client, `upstream` towards the engine.

Both bodies pass unchanged, but for `kv_transfer_params`, which only prefill legs may carry, and for
the usage of streams (see `asking`). An
answer that the engine broke off is never ended cleanly: the client's connection is cut, so that it
cannot take a part for the whole.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog
from aiohttp import HttpVersion11, web

from sidecar.guard import address
from sidecar.proxy import Journal, Limits, Outcome, Readiness
from sidecar.transfer.door import Caller, Door, Verdict
from sidecar.transfer.legs import LEG_HEADER
from sidecar.transfer.metrics import HandoffMetrics
from sidecar.transfer.split import Splitter
from sidecar.transfer.targets import Target
from sidecar.upstream import BodyGuard, Call, Upstream, pieces

from . import headers, intake, refusals
from .exchange import Exchange
from .measuring import Measuring
from .refusals import LegError, Refused
from .reply import Passage, cut, head_of
from .serving import Server
from .upload import Content, Upload

OUTCOMES = {
    refusals.ENGINE_ABSENT: Outcome.ENGINE_GONE,
    refusals.ENGINE_UNREACHED: Outcome.ENGINE_GONE,
    refusals.ENGINE_LOST: Outcome.ENGINE_GONE,
    refusals.ENGINE_SILENT: Outcome.ENGINE_GONE,
    refusals.BAD_BODY: Outcome.CLIENT_GONE,
    refusals.UPLOAD_STALLED: Outcome.CLIENT_GONE,
}
"""Every other refusal is an error answer."""

CLOSE_S = 2.0
"""How long handlers whose client has left may take to end once they are cut."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen; None as host is every interface."""

    host: str | None
    port: int
    leg_port: int | None = None


class AiohttpRelay:
    """A `proxy.Relay`. Give it to one event loop; `start` it once."""

    def __init__(
        self,
        *,
        listen: Listen,
        upstream: Upstream,
        door: Door,
        splitter: Splitter,
        metrics: HandoffMetrics,
        measuring: Measuring,
        journal: Journal,
        refusing: Readiness,
        limits: Limits,
        clock: Callable[[], float],
        wall_s: Callable[[], float],
    ) -> None:
        self._listen = listen
        self._upstream = upstream
        self._door = door
        self._splitter = splitter
        self._metrics = metrics
        self._measuring = measuring
        self._journal = journal
        self._refusing = refusing
        self._limits = limits
        self._clock = clock
        self._wall_s = wall_s
        self._store = intake.Store(limits)
        self._handlers: set[asyncio.Task[object]] = set()
        self._runners: list[web.ServerRunner] = []
        self.leg_port: int | None = None
        """Where legs are taken besides; known once it runs."""

    @property
    def in_flight(self) -> int:
        return len(self._handlers)

    @property
    def held_bytes(self) -> int:
        """Request bodies that are held at present."""
        return self._store.held_bytes

    @property
    def repeats(self) -> int:
        """Requests that were sent to the engine a second time, on a fresh connection."""
        return self._upstream.repeats

    async def start(self) -> int:
        await self._upstream.__aenter__()
        try:
            port = await self._serve_on(self._listen.port, on_leg_port=False)
            if self._listen.leg_port is not None:
                self.leg_port = await self._serve_on(self._listen.leg_port, on_leg_port=True)
        except OSError:
            await self.close()
            raise
        return port

    async def _serve_on(self, port: int, *, on_leg_port: bool) -> int:
        server = Server(
            lambda request: self._handle(request, on_leg_port=on_leg_port), self._limits
        )
        runner = web.ServerRunner(server, shutdown_timeout=0.5)
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, self._listen.host, port, backlog=1024).start()
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        # A handler may outlive its client, to free another engine's blocks: now it must end, too.
        left = self._handlers - {asyncio.current_task()}
        for handler in left:
            handler.cancel()
        if left:
            await asyncio.wait(left, timeout=CLOSE_S)
        await self._upstream.__aexit__()

    async def _handle(self, request: web.BaseRequest, *, on_leg_port: bool) -> web.StreamResponse:
        """Serve one request. Every path of an exchange ends in the journal, exactly once."""
        if request.path == "/health" and request.method in {"GET", "HEAD"}:
            return self._health()
        exchange = Exchange(request, self._clock())
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        try:
            return await self._serve(request, exchange, on_leg_port=on_leg_port)
        except ConnectionError:  # the client's connection broke while we wrote to it
            exchange.outcome = Outcome.CLIENT_GONE
            raise
        except Exception:  # edge of the task: one request fails, the sidecar goes on
            log.exception("a request failed inside the sidecar")
            exchange.outcome = Outcome.ENGINE_ERROR
            cut(request, self._limits.flush_s)
            return web.Response(status=500)
        finally:
            self._handlers.discard(handler)
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
        if self.in_flight > self._limits.max_in_flight:
            raise LegError(refusals.TOO_MANY)

    async def _serve(
        self, request: web.BaseRequest, exchange: Exchange, *, on_leg_port: bool
    ) -> web.StreamResponse:
        passage = Passage(
            request, exchange, self._journal, self._clock, lambda: self._stripped("answer")
        )
        try:
            self._check(request)
            is_leg = self._judge(request, on_leg_port=on_leg_port)
            await _continue_if_asked(request)
            if not is_leg and intake.is_form(request.headers.getall("content-type", ())):
                return await self._relay(request, passage, None, trusted=False)
            with self._store.share() as held:
                body = await intake.whole(request, self._limits, held, lambda: None)
                if is_leg:
                    self._admit(body)
                else:
                    body = await self._clean(request, body)
                    body = await self._measuring.begin(request, exchange, body)
                    split = await self._splitter.serve(
                        request, exchange, passage, body, _own(request)
                    )
                    if split is not None:
                        return split
                return await self._relay(request, passage, body, trusted=is_leg)
        except TimeoutError:
            return self._failed(request, exchange, passage, refusals.ENGINE_SILENT)
        except LegError as error:
            return self._failed(request, exchange, passage, error.refused)

    # --- legs, and what only they may carry

    def _judge(self, request: web.BaseRequest, *, on_leg_port: bool) -> bool:
        """Whether this is a genuine leg. Raises LegError for one that only claims it."""
        verdict = self._verdict(request, on_leg_port=on_leg_port)
        if verdict.refused is not None:
            self._metrics.legs_refused.labels(verdict.refused).inc()
            raise LegError(refusals.refused_leg(verdict.refused))
        return verdict.is_leg

    def _verdict(self, request: web.BaseRequest, *, on_leg_port: bool) -> Verdict:
        claims = tuple(request.headers.getall(LEG_HEADER, ()))
        if not claims and not on_leg_port:
            return Verdict()
        caller = Caller(
            method=request.method,
            path=request.raw_path,
            claims=claims,
            request_ids=tuple(request.headers.getall("x-request-id", ())),
            at=_own(request),
            peer=request.remote or "",
            on_leg_port=on_leg_port,
        )
        return self._door.judge(caller, self._wall_s())

    def _admit(self, body: bytes) -> None:
        error = self._door.body_error(body)
        if error is not None:
            self._metrics.legs_refused.labels(error).inc()
            raise LegError(refusals.refused_leg(error))
        self._metrics.legs_served.inc()

    async def _clean(self, request: web.BaseRequest, body: bytes) -> bytes:
        coding = request.headers.get("content-encoding", "")
        cleaned = await intake.without_params(body, coding, self._limits)
        if cleaned is not body:
            self._stripped("request")
        return cleaned

    def _stripped(self, direction: str) -> None:
        self._metrics.stripped.labels(direction).inc()

    # --- the plain way

    async def _relay(
        self, request: web.BaseRequest, passage: Passage, body: bytes | None, *, trusted: bool
    ) -> web.StreamResponse:
        """Let the local engine serve it. Without `body`, the request's own passes as it comes."""
        async with asyncio.timeout(self._limits.idle_timeout_s) as idle:
            progress = self._postpone(idle)
            answer = await self._upstream.send(self._call(request, body, progress))
            try:
                if answer.status < 200 or not headers.is_fit(answer.raw_headers):
                    raise LegError(refusals.ENGINE_GARBLED)
                with BodyGuard(answer):
                    await passage.run(
                        head_of(answer), pieces(answer), progress=progress, trusted=trusted
                    )
            finally:
                answer.close()
        assert passage.reply is not None
        return passage.reply

    def _call(
        self, request: web.BaseRequest, body: bytes | None, progress: Callable[[], None]
    ) -> Call:
        fields = headers.for_engine(request.raw_headers)
        upload: Upload | Content | None = None
        if request.body_exists:
            if body is None:
                upload = Upload(request.content, self._limits, progress)
            else:
                upload = Content(body)
                fields = headers.with_length(fields, len(body))
        return Call(request.method, request.raw_path, fields, upload)

    def _postpone(self, idle: asyncio.Timeout) -> Callable[[], None]:
        """A call that says "a byte moved": the idle timeout starts anew."""
        loop = asyncio.get_running_loop()
        limit = self._limits.idle_timeout_s
        return lambda: None if idle.expired() else idle.reschedule(loop.time() + limit)

    def _failed(
        self, request: web.BaseRequest, exchange: Exchange, passage: Passage, refused: Refused
    ) -> web.StreamResponse:
        """The exchange cannot go on: an answer of our own if there is none yet, else a cut."""
        if refused is refusals.ENGINE_ABSENT:
            self._journal.engine_refused()
        elif refused in (refusals.ENGINE_UNREACHED, refusals.ENGINE_LOST):
            self._journal.engine_suspect()
        outcome = OUTCOMES.get(refused, Outcome.ENGINE_ERROR)
        if passage.reply is None or not passage.begun:
            return exchange.refuse(refused, outcome)
        exchange.outcome = outcome
        cut(request, self._limits.flush_s)
        return passage.reply


def _own(request: web.BaseRequest) -> Target | None:
    """Address and port that the request came in at: where this sidecar is a member."""
    transport = request.transport
    name = None if transport is None else transport.get_extra_info("sockname")
    return Target(address(name[0]), name[1]) if isinstance(name, tuple) else None


async def _continue_if_asked(request: web.BaseRequest) -> None:
    """Meet `Expect: 100-continue` ourselves: an engine that ignores it must not stall a client."""
    if request.version >= HttpVersion11 and "expect" in request.headers and request.body_exists:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
