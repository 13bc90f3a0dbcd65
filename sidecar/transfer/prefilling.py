"""The prefill leg: asks another pod to compute the prompt and to keep its KV, or to hand it over at
once to the decode leg that it starts beside itself."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.connectors import Meeting, NoMeetingError
from sidecar.http import headers
from sidecar.http.client import Answer, Call
from sidecar.http.refusals import LegError

from .door import Door
from .job import Answers, Job, Tools, call, fault_of, proven, read_whole
from .metrics import HandoffMetrics
from .params import MISADDRESSED, points_at_itself
from .steps import Fault, PrefillAnswered, PrefillBegun, PrefillFailed, SendPrefill

CANCEL_S = 1.0
"""How long a leg that is not wanted any more may still be answered, before it is cut. An engine
pins blocks some milliseconds before its answer is here; cut in between, they stay pinned for their
lease. A prefill that ends within this time is released instead."""
COMMITTED_S = 5.0
"""How long the rest of an answer may take that has begun: it is a commitment already."""
QUESTION_S = 5.0
"""How long a prefill pod may take to answer a plan's question."""


@dataclass(slots=True, kw_only=True)
class PrefillLeg:
    """One leg. `run` ends with its one event; `cancel` asks it to end sooner."""

    job: Job
    tools: Tools
    door: Door
    metrics: HandoffMetrics
    answers: Answers
    wall_s: Callable[[], float]
    begun: Callable[[PrefillBegun], None]
    """Called once, right before a leg goes out that its decode leg must meet."""
    answered_at: float | None = field(default=None, init=False)
    """When the answer's headers came."""
    task: "asyncio.Task[PrefillAnswered | PrefillFailed] | None" = field(default=None, init=False)

    def cancel(self) -> None:
        """Give up soon, unless the answer begins: then blocks are pinned, and must be freed."""
        loop = asyncio.get_running_loop()
        loop.call_later(CANCEL_S, self._cut)

    def _cut(self) -> None:
        if self.task is None:
            return
        if self.answered_at is None:
            self.task.cancel()
        else:
            asyncio.get_running_loop().call_later(COMMITTED_S, self.task.cancel)

    async def run(self, action: SendPrefill) -> PrefillAnswered | PrefillFailed:
        began = self.tools.clock()
        try:
            meeting = await self._meet(action)
        except (LegError, NoMeetingError, TimeoutError):
            return PrefillFailed(action.leg, Fault.CONNECT)  # nothing was computed
        try:
            answer = await self._send(action, meeting)
        except LegError as error:
            return PrefillFailed(action.leg, fault_of(error.refused))
        try:
            async with asyncio.timeout(COMMITTED_S):
                event = await self._read(action, answer, meeting)
        except TimeoutError:
            event = PrefillFailed(action.leg, Fault.LOST)
        except LegError as error:
            event = PrefillFailed(action.leg, fault_of(error.refused))
        finally:
            answer.close()
        self.metrics.prefill_leg.observe(self.tools.clock() - began)
        return event

    async def _meet(self, action: SendPrefill) -> Meeting:
        """What both legs agree by; starts the decode leg where it goes out together with this one.

        Raises LegError, NoMeetingError or TimeoutError when the prefill pod is of no use.
        """
        plan = self.tools.plan
        question = plan.question(action.target)
        told = b""
        if question is not None:
            fields = [(b"host", str(question.at).encode())]
            asked = Call("GET", question.path, fields, None)
            async with asyncio.timeout(QUESTION_S):
                answer = await self.tools.upstream.send_to(question.at, asked, plain=True)
                try:
                    told = await read_whole(answer)
                finally:
                    answer.close()
            if answer.head.status != 200:
                raise NoMeetingError("A prefill pod refused the question.")
        source = self.job.source
        meeting = Meeting(
            leg=action.leg,
            target=action.target,
            told=told,
            source=None if source == action.target else source,
        )
        if plan.together:
            self.begun(PrefillBegun(action.leg, plan.pairing(meeting)))
        return meeting

    async def _send(self, action: SendPrefill, meeting: Meeting) -> Answer:
        job, at = self.job, self.door.where(action.target)
        body = self.tools.plan.prefill(job.body, job.api, meeting)
        sent = proven(call(job, action.leg, body), action.leg, at, self.door, self.wall_s())
        return await self.tools.upstream.send_to(at, sent)

    async def _read(
        self, action: SendPrefill, answer: Answer, meeting: Meeting
    ) -> PrefillAnswered | PrefillFailed:
        status = answer.head.status
        if status >= 400:
            body = await read_whole(answer)
            if headers.is_fit(answer.head.fields):
                head = answer.head.under(self.job.request_id)
                self.answers.put(action.leg, head, body)
                return PrefillFailed(action.leg, Fault.STATUS, status)
            return PrefillFailed(action.leg, Fault.GARBLED)
        if status != 200:
            return PrefillFailed(action.leg, Fault.GARBLED)
        self.answered_at = self.tools.clock()
        found = self.tools.plan.read(await read_whole(answer), meeting)
        self.answers.cached_tokens = found.cached_tokens
        if found.transfer is not None and points_at_itself(found.transfer.host):
            self.metrics.misaddressed.inc()
            own = self.job.request.at
            if own is None or own.host != action.target.host:
                return PrefillAnswered(action.leg, None, self.answered_at, MISADDRESSED)
        return PrefillAnswered(action.leg, found.transfer, self.answered_at, found.missing)
