"""Drives one handoff: carries out what `Handoff` decides and tells it what happened.

Nothing here waits. Legs, limits and the client's connection call in, each with an event; what is
to be done about it is done at once, and what that leads to right behind it. Only what goes to a
client that is slow to take it is waited for (`http.outflow`).

The client's leaving is an event like any other: the handoff goes on until it is over, so that a
decode leg that must be sent is sent. `cut` is for the sidecar's own end and ends everything.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from sidecar.handoff import Handoff
from sidecar.http import refusals
from sidecar.http.client import NearClient
from sidecar.http.outflow import Outflow
from sidecar.proxy import Journal, Outcome

from .decoding import DecodeLeg
from .door import Door
from .job import Answers, Job, Tools
from .legs import REFUSED_STATUS
from .metrics import HandoffMetrics
from .prefilling import PrefillLeg
from .steps import (
    AbortDecode,
    Action,
    Arrived,
    CancelPrefill,
    ClientGone,
    CutAnswer,
    DecodeEnded,
    DecodeFailed,
    DecodeFirstByte,
    DrainDecode,
    Event,
    Fault,
    Finished,
    PassThrough,
    PrefillAnswered,
    PrefillFailed,
    Refuse,
    SendDecode,
    SendPrefill,
    TimedOut,
)
from .tally import Tally
from .targets import Target
from .times import Times

HUNG_S = 10.0
"""A prefill pod that got less time than is usual has failed only when it got so much at least."""
_CLIENT = "client"


class Handover:
    """One request's handoff. `begin` it once, or let a task `serve` it."""

    __slots__ = ("_answered", "_answers", "_client_gone", "_decode", "_door", "_events", "_hurried",
                 "_journal", "_late", "_metrics", "_near", "_over", "_passing", "_prefill",
                 "_sent_to", "_speaking", "_tally", "_telling", "_tools", "_wall_s", "error",
                 "finished", "handoff", "job", "times")  # fmt: skip

    def __init__(
        self,
        *,
        handoff: Handoff,
        job: Job,
        tools: Tools,
        door: Door,
        journal: Journal,
        metrics: HandoffMetrics,
        wall_s: Callable[[], float],
        near: NearClient | None,
        hurried: bool = False,
    ) -> None:
        """`near` is the client, if it takes bytes as they go over the wire. `hurried`: legs get
        less time than is usual, because the client waits for less."""
        self.handoff = handoff
        self.job = job
        self.finished: Finished | None = None
        self.error: Exception | None = None
        """Why it ended by a failure of our own."""
        self.times = Times(asyncio.get_running_loop())
        self._tools = tools
        self._door = door
        self._journal = journal
        self._metrics = metrics
        self._wall_s = wall_s
        self._near = near
        self._hurried = hurried
        self._over: Callable[[], object] | None = None
        self._events: deque[Event] = deque()
        self._telling = False
        self._answers = Answers()
        self._prefill: PrefillLeg | None = None
        self._decode: DecodeLeg | None = None
        self._passing: Outflow | None = None  # an error answer, on its way to the client
        self._tally = Tally(metrics, tools.clock)
        self._sent_to: dict[str, Target] = {}  # where each prefill leg went
        self._late: set[str] = set()  # legs that ran into their time limit
        self._client_gone = False
        self._speaking = False  # it is decided who answers the client
        self._answered = False

    def begin(self, over: Callable[[], object]) -> None:
        """Answer the client. `over` is called once, when all is done."""
        self._over = over
        job = self.job
        first = self._tools.plan.decode_first(job.body)
        self.tell(Arrived(job.targets, streams=job.streams, decode_first=first))
        left_s = job.deadline.left_s
        if left_s is not None and self._over is not None:
            self.times.set(_CLIENT, left_s, self._give_up)

    async def serve(self) -> None:
        """Answer the client, unless it ends by an `error`. Raises CancelledError, once all is done,
        for a client that left."""
        over = asyncio.Event()
        self.begin(over.set)
        left = False
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                if left:
                    self.cut()
                    raise
                left = True
                handler = asyncio.current_task()
                assert handler is not None
                handler.uncancel()
                self.leave()
        if left:
            raise asyncio.CancelledError
        if not self._answered and self.error is None:
            raise ConnectionError("the client has left")

    @property
    def answered(self) -> bool:
        """Whether the client got an answer, or the beginning of one."""
        return self._answered

    def leave(self) -> None:
        """The client has left."""
        self.tell(ClientGone())

    def cut(self) -> None:
        """End it at once, whatever that costs others."""
        self._close()

    # --- what happens

    def tell(self, event: Event) -> None:
        self._events.append(event)
        if self._telling:
            return
        self._telling = True
        try:
            while self._events and self.finished is None and self._over is not None:
                self._heed(self._events.popleft())
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self.broken(error)
        finally:
            self._telling = False
        if self.finished is not None and self._passing is None:
            self._close()

    def broken(self, error: Exception) -> None:
        """We have failed: one handoff ends, the sidecar goes on."""
        if self._over is not None:
            self.error = error
            self._close()

    def _heed(self, event: Event) -> None:
        if type(event) is not Arrived:
            self._note(event)
        for action in self.handoff.on(event, self._tools.clock()):
            self._do(action)
        if type(event) is DecodeFirstByte and self.finished is None:
            self._first_byte()

    def _note(self, event: Event) -> None:
        """What is known besides from what happened: who has left, and which pods are of use."""
        breakers = self._tools.breakers
        self.job.trace.note(event)
        self._tally.note(event)
        match event:
            case PrefillAnswered(leg):
                self.times.drop(leg)
                breakers.succeeded(self._sent_to[leg])
            case DecodeEnded(leg) | DecodeFailed(leg):
                self.times.drop(leg)
            case ClientGone():
                self._client_gone = True
            case TimedOut(leg):
                self._late.add(leg)
            case PrefillFailed(leg):
                self.times.drop(leg)
                self._prefill_failed(event, self._sent_to[leg])
            case _:
                pass

    def _prefill_failed(self, event: PrefillFailed, target: Target) -> None:
        breakers = self._tools.breakers
        if self._is_its_own_fault(event):
            breakers.failed(target, self._tools.clock())
            self._tools.forget(target)
        elif event.fault is Fault.STATUS:
            breakers.succeeded(target)

    def _is_its_own_fault(self, event: PrefillFailed) -> bool:
        """Whether the prefill pod failed, and not its client or we. One that is only busy (429)
        may have room for the next."""
        if event.fault is Fault.STATUS:
            return event.status >= 500 or event.status == REFUSED_STATUS
        if event.fault is not Fault.CANCELLED:
            return True
        had_time = not self._hurried or self.handoff.policy.prefill_s >= HUNG_S
        return event.leg in self._late and had_time

    def _do(self, action: Action) -> None:
        match action:
            case SendPrefill():
                self._send_prefill(action)
            case SendDecode():
                self._send_decode(action)
            case Finished():
                self._finish(action)
            case CancelPrefill():
                assert self._prefill
                self._prefill.cancel()
            case AbortDecode():
                assert self._decode
                self._decode.cancel()
            case DrainDecode(leg, within_s):
                self._arm(leg, within_s)
            case Refuse() | PassThrough() if self._speaking:
                pass  # its time was over while this was decided
            case Refuse(status, reason):
                self._speaking = True
                refused = refusals.handoff_failed(status, reason)
                gone = reason.startswith("engine-") and status != 502
                outcome = Outcome.ENGINE_GONE if gone else Outcome.ENGINE_ERROR
                self.job.passage.refuse(refused, outcome)
                self._answered = True
            case PassThrough(leg):
                self._speaking = True
                self._pass(leg)
            case CutAnswer():
                self.job.passage.cut(Outcome.ENGINE_GONE)
                self._answered = True

    def _finish(self, finished: Finished) -> None:
        self.finished = finished
        if not self._client_gone:
            self._answered = True

    def _close(self) -> None:
        """Nothing runs from here on. Say how it ended."""
        over, self._over = self._over, None
        if over is None:
            return
        self.times.stop()
        for leg in (self._prefill, self._decode):
            if leg is not None:
                leg.drop()
        self._prefill = self._decode = None  # or they would hold each other
        if self._passing is not None:
            self._passing.stop()
        self._tally.ends(self.finished)
        self.job.trace.ends(self.finished, len(self.job.targets))
        over()

    def _give_up(self) -> None:
        """When the client's time is over, it has left; what that costs others is still done."""
        self._metrics.expired_clients.inc()
        self._client_gone = True
        if not self._speaking:
            self._speaking = self._answered = True
            self.job.passage.refuse(refusals.DEADLINE, Outcome.ENGINE_GONE)
        self.tell(ClientGone())

    # --- legs

    def _send_prefill(self, action: SendPrefill) -> None:
        self._sent_to[action.leg] = action.target
        self.job.trace.begins(action)
        self._tally.begins(action)
        self._tools.breakers.sent(action.target, self._tools.clock())
        leg = self._prefill = PrefillLeg(
            action,
            job=self.job,
            tools=self._tools,
            door=self._door,
            metrics=self._metrics,
            answers=self._answers,
            wall_s=self._wall_s,
            desk=self,
        )
        self._arm(action.leg, action.within_s)
        leg.send()

    def _send_decode(self, action: SendDecode) -> None:
        pulls = action.transfer is not None
        self.job.exchange.recount = self._answers.cached_elsewhere if pulls else None
        self.job.trace.begins(action)
        self._tally.begins(action)
        leg = self._decode = DecodeLeg(
            action.leg,
            job=self.job,
            tools=self._tools,
            journal=self._journal,
            answers=self._answers,
            desk=self,
            near=self._near,
        )
        self._arm(action.leg, action.within_s)
        leg.send(action)

    def _first_byte(self) -> None:
        """The decode leg's answer is good; somebody gets it, or nobody."""
        leg = self._decode
        assert leg
        self._tally.flows(leg.first_at, to_nobody=self._client_gone)
        if not self._client_gone:
            self.times.drop(leg.name)
            self._speaking = leg.goes = True

    def _pass(self, leg: str) -> None:
        """The client gets an engine's whole answer."""
        answer = self._answers.by_leg[leg]
        outflow = self._passing = Outflow(
            self.job.passage, read_on=lambda _: None, over=self._passed, broken=self._unpassed
        )
        outflow.whole(answer.head, answer.body, self._near)

    def _passed(self) -> None:
        self.job.exchange.outcome = Outcome.ENGINE_ERROR
        self._answered = True
        self._let_pass()

    def _unpassed(self, error: Exception) -> None:
        if not isinstance(error, ConnectionError):
            self.broken(error)
            return
        self._client_gone = True
        self._answered = False
        self._let_pass()

    def _let_pass(self) -> None:
        self._passing = None
        if self.finished is not None and not self._telling:
            self._close()

    def _arm(self, leg: str, within_s: float) -> None:
        self.times.set(leg, within_s, lambda: self.tell(TimedOut(leg)))
