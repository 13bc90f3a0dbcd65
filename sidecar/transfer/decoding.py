"""The decode leg: the local engine's answer, held back until it is known to be a good one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.http import headers
from sidecar.http.client import Answer
from sidecar.http.idle import Idle
from sidecar.http.refusals import ENGINE_ABSENT, ENGINE_LOST, ENGINE_UNREACHED, LegError, Refused
from sidecar.proxy import Journal

from .job import Answers, Job, Tools, call, fault_of, read_whole
from .openings import Opening, Verdict
from .steps import DecodeEnded, DecodeFailed, DecodeFirstByte, Fault, SendDecode


@dataclass(slots=True, kw_only=True)
class DecodeLeg:
    """One leg. `run` ends with its one event; before that, `first_byte` is called once for an
    answer that is good so far, and nothing goes to the client until `go` is set.
    """

    name: str
    job: Job
    tools: Tools
    journal: Journal
    answers: Answers
    first_byte: Callable[[DecodeFirstByte], None]
    go: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    first_at: float | None = field(default=None, init=False)
    """When the first byte came."""
    task: "asyncio.Task[DecodeEnded | DecodeFailed] | None" = field(default=None, init=False)

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    async def run(self, action: SendDecode) -> DecodeEnded | DecodeFailed:
        if action.deadline is not None and self.tools.clock() > action.deadline:
            return DecodeFailed(action.leg, Fault.LATE)
        try:
            answer = await self._send(action)
        except LegError as error:
            return self._failed(action, error.refused)
        try:
            return await self._pass(action, answer)
        except TimeoutError:  # it fell silent in mid-answer
            return DecodeFailed(action.leg, Fault.LOST)
        except LegError as error:
            return self._failed(action, error.refused)
        finally:
            answer.close()

    async def _send(self, action: SendDecode) -> Answer:
        job, plan, upstream = self.job, self.tools.plan, self.tools.upstream
        if action.transfer is None:
            body = job.body.raw if action.probe else plan.alone(job.body, job.api)
            return await upstream.send(call(job, action.leg, body))
        write = plan.release if action.release else plan.decode
        return await upstream.send_once(
            call(job, action.leg, write(job.body, job.api, action.transfer.take()))
        )

    def _failed(self, action: SendDecode, refused: Refused) -> DecodeFailed:
        if refused is ENGINE_ABSENT:
            self.journal.engine_refused()
        elif refused in (ENGINE_UNREACHED, ENGINE_LOST):
            self.journal.engine_suspect()
        return DecodeFailed(action.leg, fault_of(refused))

    async def _pass(self, action: SendDecode, answer: Answer) -> DecodeEnded | DecodeFailed:
        head = answer.head.under(self.job.request_id)
        if head.status < 200 or not headers.is_fit(head.fields):
            return DecodeFailed(action.leg, Fault.GARBLED)
        if head.status >= 400:
            self.answers.put(action.leg, head, await read_whole(answer))
            return DecodeFailed(action.leg, Fault.STATUS, head.status)
        # Without parameters no pull can have failed, and nothing need be held back.
        told = action.transfer is not None or action.probe
        opening = Opening(head.value("content-type") if told else "", probe=action.probe)
        async for piece in answer.pieces():
            if self.first_at is None:
                self.first_at = self.tools.clock()
            if opening.feed(piece) is not Verdict.UNDECIDED:
                break
        if opening.finish() is Verdict.COLD:
            return DecodeFailed(action.leg, Fault.COLD, head.status)
        if opening.finish() is Verdict.ERROR_EVENT:
            self.answers.put(action.leg, head, await read_whole(answer, bytes(opening.held)))
            return DecodeFailed(action.leg, Fault.ERROR_EVENT, head.status)
        self.first_byte(DecodeFirstByte(action.leg))
        await self.go.wait()
        limits = self.tools.limits
        with Idle(limits.idle_timeout_s, limits.total_timeout_s) as idle:
            await self.job.passage.run(head, answer, begun=bytes(opening.held), progress=idle.touch)
        return DecodeEnded(action.leg)
