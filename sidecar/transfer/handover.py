"""Drives one handoff: carries out what `Handoff` decides and tells it what happened.

The client's leaving cancels the handler of its request. Here it is an event like any other: the
handler goes on until the handoff is over, so that a decode leg that must be sent is sent. A second
cancellation is the sidecar's own end and cuts everything.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.handoff import Handoff
from sidecar.http import refusals
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

HUNG_S = 10.0
"""A prefill pod that got less time than is usual has failed only when it got so much at least."""


@dataclass(slots=True, kw_only=True, eq=False)
class Handover:
    """One request's handoff. `serve` it once."""

    handoff: Handoff
    job: Job
    tools: Tools
    door: Door
    journal: Journal
    metrics: HandoffMetrics
    wall_s: Callable[[], float]
    hurried: bool = False
    """Whether legs get less time than is usual, because the client waits for less."""
    finished: Finished | None = field(default=None, init=False)
    _events: "asyncio.Queue[Event]" = field(default_factory=asyncio.Queue, init=False)
    _answers: Answers = field(default_factory=Answers, init=False)
    _prefill: PrefillLeg | None = field(default=None, init=False)
    _decode: DecodeLeg | None = field(default=None, init=False)
    _tally: Tally = field(init=False)
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict, init=False)
    _sent_to: dict[str, Target] = field(default_factory=dict, init=False)
    """Where each prefill leg went."""
    _late: set[str] = field(default_factory=set, init=False)
    """Legs that ran into their time limit."""
    _client_gone: bool = field(default=False, init=False)
    _speaking: bool = field(default=False, init=False)
    """Whether it is decided who answers the client."""
    _answered: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._tally = Tally(self.metrics, self.tools.clock)

    async def serve(self) -> None:
        """Answer the client. Raises CancelledError, once all is done, for a client that left."""
        self._expire()
        try:
            left = await self._driven()
        finally:
            for leg in tuple(self._timers):
                self._disarm(leg)
        if left:
            raise asyncio.CancelledError
        if not self._answered:
            raise ConnectionError("the client has left")

    async def _driven(self) -> bool:
        """Whether the client left before all was done.

        Its cancellation ends here: one that went on would hold this frame, which holds the group,
        and that the present task, which keeps what it was cancelled with.
        """
        left = False
        async with asyncio.TaskGroup() as legs:
            driving = legs.create_task(self._drive(legs))
            while not driving.done():
                try:
                    await asyncio.wait({driving})
                except asyncio.CancelledError:
                    if left:
                        raise
                    left = True
                    handler = asyncio.current_task()
                    assert handler is not None
                    handler.uncancel()
                    self._events.put_nowait(ClientGone())
        return left

    async def _drive(self, legs: asyncio.TaskGroup) -> None:
        job, clock = self.job, self.tools.clock
        first = self.tools.plan.decode_first(job.body)
        event: Event = Arrived(job.targets, streams=job.streams, decode_first=first)
        while True:
            for action in self.handoff.on(event, clock()):
                await self._do(action, legs)
            if self.finished is not None:
                return
            if isinstance(event, DecodeFirstByte):
                self._first_byte()
            event = await self._events.get()
            self._note(event)

    def _note(self, event: Event) -> None:
        """What is known besides from what happened: who has left, and which pods are of use."""
        breakers = self.tools.breakers
        self.job.trace.note(event)
        self._tally.note(event)
        match event:
            case ClientGone():
                self._client_gone = True
            case TimedOut(leg):
                self._late.add(leg)
            case PrefillAnswered(leg):
                breakers.succeeded(self._sent_to[leg])
            case PrefillFailed(leg) if self._is_its_own_fault(event):
                breakers.failed(self._sent_to[leg], self.tools.clock())
                self.tools.forget(self._sent_to[leg])
            case PrefillFailed(leg, Fault.STATUS):
                breakers.succeeded(self._sent_to[leg])
            case _:
                pass

    def _is_its_own_fault(self, event: PrefillFailed) -> bool:
        """Whether the prefill pod failed, and not its client or we. One that is only busy (429)
        may have room for the next."""
        if event.fault is Fault.STATUS:
            return event.status >= 500 or event.status == REFUSED_STATUS
        if event.fault is not Fault.CANCELLED:
            return True
        had_time = not self.hurried or self.handoff.policy.prefill_s >= HUNG_S
        return event.leg in self._late and had_time

    async def _do(self, action: Action, legs: asyncio.TaskGroup) -> None:
        match action:
            case SendPrefill():
                self._send_prefill(action, legs)
            case SendDecode():
                self._send_decode(action, legs)
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
                await self._pass(leg)
            case CutAnswer():
                self.job.passage.cut(Outcome.ENGINE_GONE)
                self._answered = True
            case Finished():
                self._finish(action)

    def end(self) -> None:
        """Say how it ended, once it did."""
        self._tally.ends(self.finished)
        self.job.trace.ends(self.finished, len(self.job.targets))

    def _finish(self, finished: Finished) -> None:
        self.finished = finished
        if not self._client_gone:
            self._answered = True

    def _expire(self) -> None:
        """When the client's time is over, it has left; what that costs others is still done."""
        left_s = self.job.deadline.left_s
        if left_s is not None:
            loop = asyncio.get_running_loop()
            self._timers[""] = loop.call_later(left_s, self._give_up)

    def _give_up(self) -> None:
        self.metrics.expired_clients.inc()
        self._client_gone = True
        self._events.put_nowait(ClientGone())
        if not self._speaking:
            self._speaking = self._answered = True
            self.job.passage.refuse(refusals.DEADLINE, Outcome.ENGINE_GONE)

    # --- legs

    def _send_prefill(self, action: SendPrefill, legs: asyncio.TaskGroup) -> None:
        self._sent_to[action.leg] = action.target
        self.job.trace.begins(action)
        self._tally.begins(action)
        self.tools.breakers.sent(action.target, self.tools.clock())
        leg = self._prefill = PrefillLeg(
            job=self.job,
            tools=self.tools,
            door=self.door,
            metrics=self.metrics,
            answers=self._answers,
            wall_s=self.wall_s,
            begun=self._events.put_nowait,
        )
        leg.task = legs.create_task(leg.run(action))
        leg.task.add_done_callback(
            lambda task: self._ended(task, leg, PrefillFailed(action.leg, Fault.CANCELLED))
        )
        self._arm(action.leg, action.within_s)

    def _send_decode(self, action: SendDecode, legs: asyncio.TaskGroup) -> None:
        pulls = action.transfer is not None
        self.job.exchange.recount = self._answers.cached_elsewhere if pulls else None
        self.job.trace.begins(action)
        self._tally.begins(action)
        leg = self._decode = DecodeLeg(
            name=action.leg,
            job=self.job,
            tools=self.tools,
            journal=self.journal,
            answers=self._answers,
            first_byte=self._events.put_nowait,
        )
        leg.task = legs.create_task(self._decoded(leg, action))
        leg.task.add_done_callback(
            lambda task: self._ended(task, leg, DecodeFailed(action.leg, Fault.CANCELLED))
        )
        self._arm(action.leg, action.within_s)

    async def _decoded(self, leg: DecodeLeg, action: SendDecode) -> DecodeEnded | DecodeFailed:
        try:
            return await leg.run(action)
        except ConnectionError:  # the client's connection broke while we wrote to it
            self._events.put_nowait(ClientGone())
            return DecodeFailed(action.leg, Fault.CANCELLED)

    def _ended(
        self,
        task: "asyncio.Task[Event]",
        leg: PrefillLeg | DecodeLeg,
        cancelled: PrefillFailed | DecodeFailed,
    ) -> None:
        """The leg's one event. A failure of our own is the task group's to raise."""
        leg.task = None  # a task that was cancelled holds the frames it was in, and they the leg
        self._disarm(cancelled.leg)
        if task.cancelled():
            self._events.put_nowait(cancelled)
        elif task.exception() is None:
            self._events.put_nowait(task.result())

    def _first_byte(self) -> None:
        """The decode leg's answer is good; somebody gets it, or nobody."""
        leg = self._decode
        assert leg
        self._tally.flows(leg.first_at, to_nobody=self._client_gone)
        if not self._client_gone:
            self._disarm(leg.name)
            self._speaking = True
            leg.go.set()

    async def _pass(self, leg: str) -> None:
        """The client gets an engine's whole answer."""
        answer = self._answers.by_leg[leg]
        try:
            await self.job.passage.whole(answer.head, answer.body)
        except ConnectionError:
            self._client_gone = True
            return
        self.job.exchange.outcome = Outcome.ENGINE_ERROR
        self._answered = True

    # --- time

    def _arm(self, leg: str, within_s: float) -> None:
        self._disarm(leg)
        loop = asyncio.get_running_loop()
        self._timers[leg] = loop.call_later(within_s, self._events.put_nowait, TimedOut(leg))

    def _disarm(self, leg: str) -> None:
        timer = self._timers.pop(leg, None)
        if timer is not None:
            timer.cancel()
