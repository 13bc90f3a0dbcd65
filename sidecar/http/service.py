"""Serves requests: what is refused, what is handed over, what the local engine gets.

Both bodies pass unchanged, but for `kv_transfer_params`, which only prefill legs may carry, and for
the usage of streams (see `asking`). An answer that the engine broke off is never ended cleanly: the
client's connection is cut, so that it cannot take a part for the whole.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field

import msgspec
import structlog

from sidecar.proxy import Journal, Limits, Outcome, Readiness
from sidecar.transfer.course import Course
from sidecar.transfer.door import Caller, Door, Verdict
from sidecar.transfer.handover import Handover
from sidecar.transfer.legs import LEG_HEADER
from sidecar.transfer.metrics import HandoffMetrics
from sidecar.transfer.reading import Visit
from sidecar.transfer.split import Later

from . import headers, intake, refusals
from .client import Answer, Call, Client, Lines, NearClient, Upstream
from .direct import Direct, Over, Served, may_go_directly
from .exchange import Exchange
from .idle import Idle
from .incoming import Incoming
from .measuring import Measuring
from .passage import Passage
from .refusals import LegError, Refused
from .splitting import Splitting
from .upload import Content, Upload

OUTCOMES = {
    refusals.ENGINE_ABSENT: Outcome.ENGINE_GONE,
    refusals.ENGINE_UNREACHED: Outcome.ENGINE_GONE,
    refusals.ENGINE_LOST: Outcome.ENGINE_GONE,
    refusals.ENGINE_SILENT: Outcome.ENGINE_GONE,
    refusals.TOO_LONG: Outcome.ENGINE_GONE,
    refusals.BAD_BODY: Outcome.CLIENT_GONE,
    refusals.UPLOAD_STALLED: Outcome.CLIENT_GONE,
}
"""Every other refusal is an error answer."""

Send = Callable[[Call], Awaitable[Answer]]

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Service:
    """One for a sidecar. Its shells call `serve` for each request, in a task of its own."""

    upstream: Upstream
    door: Door
    course: Course
    metrics: HandoffMetrics
    measuring: Measuring
    journal: Journal
    refusing: Readiness
    limits: Limits
    clock: Callable[[], float]
    wall_s: Callable[[], float]
    store: intake.Store = field(init=False)
    running: set["asyncio.Task[None]"] = field(default_factory=set, init=False)
    """The tasks of exchanges that have begun and not ended."""
    most_direct: int = field(init=False)
    """Bytes of a body that needs no task."""
    directs: set[Direct | Splitting] = field(default_factory=set, init=False)
    """Those that need no task."""

    def __post_init__(self) -> None:
        self.store = intake.Store(self.limits)
        self.most_direct = min(intake.INLINE_BYTES, self.limits.max_body_bytes)

    @property
    def in_flight(self) -> int:
        """Exchanges that have begun and not ended."""
        return len(self.running) + len(self.directs)

    async def serve(self, client: Client) -> None:
        """Serve one request. Every path of an exchange ends in the journal, exactly once."""
        incoming = client.incoming
        if incoming.path == "/health" and incoming.method in {"GET", "HEAD"}:
            self._health(client)
            return
        arrived = incoming.arrived
        exchange = Exchange(incoming, self.clock() if arrived is None else arrived)
        await self._in_task(client, exchange, lambda: self._exchange(client, exchange))

    async def _in_task(
        self, client: Client, exchange: Exchange, work: Callable[[], Awaitable[None]]
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.running.add(task)
        try:
            await work()
        except ConnectionError:  # the client's connection broke while we wrote to it
            exchange.outcome = Outcome.CLIENT_GONE
            raise
        except Exception:  # edge of the task: one request fails, the sidecar goes on
            log.exception("a request failed inside the sidecar")
            exchange.outcome = Outcome.ENGINE_ERROR
            client.cut()
        finally:
            self.running.discard(task)
            del task  # or a cancelled one would hold this frame, and the frame the task
            self.journal.ended(exchange.ended(self.clock()))

    async def cut(self, within_s: float) -> None:
        """End all that is in flight: what outlives its client, to free another engine's blocks."""
        for direct in tuple(self.directs):
            direct.cut()
        left = self.running - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=within_s)

    def _health(self, client: Client) -> None:
        reason = self.refusing()
        body = {"status": "ready"} if reason is None else {"status": "not ready", "reason": reason}
        client.own(200 if reason is None else 503, msgspec.json.encode(body))

    def _check(self, incoming: Incoming) -> None:
        """Raise LegError for a request that must not reach the engine."""
        expected = incoming.value("expect")
        if incoming.method == "CONNECT":
            raise LegError(refusals.NO_TUNNEL)
        if incoming.value("upgrade") is not None and headers.asks_for_upgrade(incoming.fields):
            raise LegError(refusals.NO_UPGRADE)
        if not incoming.target.startswith("/"):
            raise LegError(refusals.BAD_TARGET)
        if expected is not None and expected.lower() != "100-continue":
            raise LegError(refusals.BAD_EXPECT)
        if incoming.length is not None and incoming.length > self.limits.max_body_bytes:
            raise LegError(refusals.TOO_LARGE)
        if self.in_flight > self.limits.max_in_flight:
            raise LegError(refusals.TOO_MANY)

    async def _exchange(self, client: Client, exchange: Exchange) -> None:
        incoming = client.incoming
        passage = self._passage(client, exchange)
        try:
            self._check(incoming)
            is_leg = self._judge(incoming)
            await self._continue_if_asked(client)
            if not is_leg and intake.is_form(incoming.values("content-type")):
                await self._relay(client, passage, None, trusted=False)
                return
            with self.store.share() as held:
                body = await intake.whole(client, self.limits, held)
                if is_leg:
                    self._admit(body)
                else:
                    body = await self._clean(incoming, body)
                    body = await self.measuring.begin(incoming, exchange, body)
                    left = await self.course.serve(incoming, exchange, passage, body)
                    if left is None:
                        return
                    body = left
                await self._relay(client, passage, body, trusted=is_leg)
        except LegError as error:
            self.failed(passage, error.refused)

    def _passage(self, client: Client, exchange: Exchange) -> Passage:
        return Passage(client, exchange, self.journal, self.clock, self._answer_stripped)

    async def _continue_if_asked(self, client: Client) -> None:
        """Meet `Expect: 100-continue` ourselves: an engine that ignores it must not stall it."""
        incoming = client.incoming
        if incoming.http11 and incoming.has_body and incoming.value("expect") is not None:
            wait = client.proceed()
            if wait is not None:
                await wait

    # --- legs, and what only they may carry

    def _judge(self, incoming: Incoming) -> bool:
        """Whether this is a genuine leg. Raises LegError for one that only claims it."""
        verdict = self._verdict(incoming)
        if verdict.refused is not None:
            self.metrics.legs_refused.labels(verdict.refused).inc()
            raise LegError(refusals.refused_leg(verdict.refused))
        return verdict.is_leg

    def _verdict(self, incoming: Incoming) -> Verdict:
        claims = incoming.values(LEG_HEADER)
        if not claims and not incoming.on_leg_port:
            return Verdict()
        caller = Caller(
            method=incoming.method,
            path=incoming.target,
            claims=claims,
            request_ids=incoming.values("x-request-id"),
            at=incoming.at,
            peer=incoming.peer,
            on_leg_port=incoming.on_leg_port,
        )
        return self.door.judge(caller, self.wall_s())

    def _admit(self, body: bytes) -> None:
        error = self.door.body_error(body)
        if error is not None:
            self.metrics.legs_refused.labels(error).inc()
            raise LegError(refusals.refused_leg(error))
        self.metrics.legs_served.inc()

    async def _clean(self, incoming: Incoming, body: bytes) -> bytes:
        coding = incoming.value("content-encoding") or ""
        cleaned = await intake.without_params(body, coding, self.limits)
        if cleaned is not body:
            self._stripped("request")
        return cleaned

    def _answer_stripped(self) -> None:
        self._stripped("answer")

    def _stripped(self, direction: str) -> None:
        self.metrics.stripped.labels(direction).inc()

    # --- the plain way

    async def _relay(
        self, client: Client, passage: Passage, body: bytes | None, *, trusted: bool
    ) -> None:
        """Let the local engine serve it. Without `body`, the request's own passes as it comes."""
        upload: Upload | Content | None = None
        idle = Idle(self.limits.idle_timeout_s, self.limits.total_timeout_s)
        if client.incoming.has_body:
            upload = Upload(client, self.limits, idle.touch) if body is None else Content(body)
        call = self._call(client.incoming, upload)
        await self._sent(passage, call, self.upstream.send, idle, trusted=trusted)

    async def _sent(
        self, passage: Passage, call: Call, send: Send, idle: Idle, *, trusted: bool = False
    ) -> None:
        """Send it, and pass the answer on."""
        try:
            with idle:
                answer = await send(call)
                try:
                    head = answer.head
                    if head.status < 200 or not headers.is_fit(head.fields):
                        raise LegError(refusals.ENGINE_GARBLED)
                    await passage.run(head, answer, progress=idle.touch, trusted=trusted)
                finally:
                    answer.close()
        except TimeoutError as error:
            late = refusals.TOO_LONG if idle.too_long else refusals.ENGINE_SILENT
            raise LegError(late) from error

    def _call(self, incoming: Incoming, upload: Upload | Content | None) -> Call:
        length = len(upload.body) if isinstance(upload, Content) else None
        fields = headers.for_engine(incoming.fields, length)
        return Call(incoming.method, incoming.target, fields, upload)

    # --- the plain way without a task; see `direct`

    def direct(self, client: NearClient, body: bytes, lines: Lines, over: Over) -> Served | None:
        """Begin to serve a request whose body is here; None where only `serve` can, or where a task
        was given to `over` already."""
        incoming, size = client.incoming, len(body)
        limits = self.limits
        if (
            not may_go_directly(incoming)
            or size > self.most_direct
            or size + self.store.held_bytes > limits.max_held_bytes
            or len(self.running) + len(self.directs) >= limits.max_in_flight
            or intake.may_hold(body)
        ):
            return None
        now = self.clock()
        exchange = Exchange(incoming, now if incoming.arrived is None else incoming.arrived)
        body = self.measuring.begin_at_once(incoming, exchange, body)
        passage = self._passage(client, exchange)
        if incoming.shape is not None and incoming.shape.splits:
            visit = Visit(incoming, exchange, passage, client)
            begun = self.course.at_once(visit, body)
            if isinstance(begun, Handover):
                return self._split(visit, client, begun, body, size=size, over=over)
            if begun is not None:
                over(
                    self._in_task(
                        client, exchange, lambda: self._later(client, passage, body, begun)
                    )
                )
                return None
        if incoming.has_body and incoming.shape is not None:
            written = incoming.shape.engine_lines(incoming.worth, len(body))
            call = Call(incoming.method, incoming.target, [], Content(body), written)
        else:
            call = self._call(incoming, None)
        direct = Direct(self, client, exchange, passage, call, size=size, began=now, over=over)
        self.directs.add(direct)
        self.store.held_bytes += size
        direct.ask_on(lines)
        return direct

    def left(self, direct: Direct | Splitting) -> None:
        self._let_go(direct)
        self.journal.ended(direct.exchange.ended(self.clock()))

    def _let_go(self, direct: Direct | Splitting) -> None:
        self.directs.discard(direct)
        self.store.held_bytes -= direct.size

    def again(self, direct: Direct) -> Coroutine[None, None, None]:
        self._let_go(direct)
        return self._in_task(direct.client, direct.exchange, lambda: self._repeat(direct))

    async def _repeat(self, direct: Direct) -> None:
        idle = Idle(self.limits.idle_timeout_s, self.limits.total_timeout_s)
        try:
            with self.store.share() as held:
                held.grow(direct.size)
                await self._sent(direct.passage, direct.call, self.upstream.send_again, idle)
        except LegError as error:
            self.failed(direct.passage, error.refused)

    # --- a split request without a task; see `splitting`

    def _split(
        self,
        visit: Visit,
        client: NearClient,
        handover: Handover,
        body: bytes,
        *,
        size: int,
        over: Over,
    ) -> Splitting:
        splitting = Splitting(
            self, client, visit.exchange, visit.passage, handover, body=body, size=size, over=over
        )
        self.directs.add(splitting)
        self.store.held_bytes += size
        splitting.begin()
        return splitting

    async def _later(self, client: Client, passage: Passage, body: bytes, later: Later) -> None:
        """Split it once somebody was waited for."""
        try:
            with self.store.share() as held:
                held.grow(len(body))
                if not await later():
                    await self._relay(client, passage, body, trusted=False)
        except LegError as error:
            self.failed(passage, error.refused)

    def split(self, splitting: Splitting) -> None:
        self.course.over(splitting.handover)
        self.left(splitting)

    def alone(self, splitting: Splitting) -> Coroutine[None, None, None]:
        self.course.over(splitting.handover)
        self._let_go(splitting)
        client, passage, body = splitting.client, splitting.passage, splitting.body
        return self._in_task(
            client, splitting.exchange, lambda: self._later(client, passage, body, _not_split)
        )

    def sweep(self) -> None:
        """Give up what takes too long; called from time to time by a shell with directs."""
        now, limits = self.clock(), self.limits
        for direct in tuple(self.directs):
            direct.sweep(now, limits.idle_timeout_s, limits.total_timeout_s)

    def failed(self, passage: Passage, refused: Refused) -> None:
        """The exchange cannot go on: an answer of our own if there is none yet, else a cut."""
        if refused is refusals.ENGINE_ABSENT:
            self.journal.engine_refused()
        elif refused in (refusals.ENGINE_UNREACHED, refusals.ENGINE_LOST):
            self.journal.engine_suspect()
        outcome = OUTCOMES.get(refused, Outcome.ENGINE_ERROR)
        if passage.begun:
            passage.cut(outcome)
        else:
            passage.refuse(refused, outcome)


async def _not_split() -> bool:
    return False
