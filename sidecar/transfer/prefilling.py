"""The prefill leg: asks another pod to compute the prompt and to keep its KV, or to hand it over at
once to the decode leg that it starts beside itself."""

import asyncio
from collections.abc import Callable

from sidecar.connectors import Meeting, NoMeetingError, Question
from sidecar.http import headers
from sidecar.http.client import Asked, Call, Head
from sidecar.http.refusals import LegError

from .decoding import Desk
from .door import Door
from .job import MAX_WHOLE, Answers, Job, Tools, call_at, fault_of, read_whole
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


class PrefillLeg:
    """One leg. A `http.client.Listener`. It tells of its one end; `cancel` asks it to end sooner.

    Right before a leg goes out that its decode leg must meet, it tells of that once.
    """

    __slots__ = ("_action", "_answers", "_asked", "_began", "_body", "_desk", "_door", "_head",
                 "_job", "_meeting", "_metrics", "_over", "_question", "_timed", "_tools",
                 "_wall_s", "answered_at")  # fmt: skip
    _meeting: Meeting

    def __init__(
        self,
        action: SendPrefill,
        *,
        job: Job,
        tools: Tools,
        door: Door,
        metrics: HandoffMetrics,
        answers: Answers,
        wall_s: Callable[[], float],
        desk: Desk,
    ) -> None:
        self.answered_at: float | None = None
        """When the answer's headers came."""
        self._action = action
        self._job = job
        self._tools = tools
        self._door = door
        self._metrics = metrics
        self._answers = answers
        self._wall_s = wall_s
        self._desk = desk
        self._began = 0.0
        self._question: asyncio.Task[bytes] | None = None
        self._asked: Asked | None = None
        self._head: Head | None = None
        self._body: bytes | bytearray = b""
        self._timed = False  # it has limits of its own
        self._over = False

    def send(self) -> None:
        self._began = self._tools.clock()
        question = self._tools.plan.question(self._action.target)
        if question is None:
            self._meet(b"")
            return
        self._question = asyncio.get_running_loop().create_task(self._told(question))
        self._question.add_done_callback(self._answered)

    def cancel(self) -> None:
        """Give up soon, unless the answer begins: then blocks are pinned, and must be freed."""
        self._timed = True
        self._desk.times.set(f"{self._action.leg}!", CANCEL_S, self._cut)

    def drop(self) -> None:
        """End it at once, and nobody is told."""
        self._over = True
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.drop()
        if self._question is not None:
            self._question.cancel()

    def _cut(self) -> None:
        if self.answered_at is None:
            self._fails(Fault.CANCELLED)
        else:
            self._desk.times.set(
                f"{self._action.leg}!", COMMITTED_S, lambda: self._fails(Fault.CANCELLED)
            )

    # --- before it goes out

    async def _told(self, question: Question) -> bytes:
        """What the prefill pod answers to the plan's question."""
        fields = [(b"host", str(question.at).encode())]
        asked = Call("GET", question.path, fields, None)
        async with asyncio.timeout(QUESTION_S):
            answer = await self._tools.upstream.send_to(question.at, asked, plain=True)
            try:
                told = await read_whole(answer)
            finally:
                answer.close()
        if answer.head.status != 200:
            raise NoMeetingError("A prefill pod refused the question.")
        return told

    def _answered(self, asking: "asyncio.Task[bytes]") -> None:
        self._question = None
        if self._over or asking.cancelled():
            return
        error = asking.exception()
        if error is None:
            self._meet(asking.result())
        elif isinstance(error, LegError | NoMeetingError | TimeoutError):
            self._fails(Fault.CONNECT)  # nothing was computed
        else:
            assert isinstance(error, Exception)
            self._desk.broken(error)

    def _meet(self, told: bytes) -> None:
        """Send it; and before that the decode leg, where it goes out together with this one."""
        action, plan, source = self._action, self._tools.plan, self._job.source
        meeting = self._meeting = Meeting(
            leg=action.leg,
            target=action.target,
            told=told,
            source=None if source == action.target else source,
        )
        if plan.together:
            try:
                pairing = plan.pairing(meeting)
            except NoMeetingError:
                self._fails(Fault.CONNECT)
                return
            self._desk.tell(PrefillBegun(action.leg, pairing))
        try:
            self._ask(meeting)
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self._desk.broken(error)

    def _ask(self, meeting: Meeting) -> None:
        job, at = self._job, self._door.where(self._action.target)
        leg = self._action.leg
        body = self._tools.plan.prefill(job.body, job.api, meeting)
        sent = call_at(job, leg, at, body, door=self._door, now_s=self._wall_s())
        self._asked = self._tools.upstream.ask_at(at, self, sent)

    # --- what the pod's connection tells

    def begin(self, head: Head) -> None:
        if not self._headed(head):
            return
        self._body, self._timed = bytearray(), True
        self._desk.times.set(f"{self._action.leg}.", COMMITTED_S, lambda: self._fails(Fault.LOST))

    def _headed(self, head: Head) -> bool:
        """Whether its body is of use."""
        self._head = head
        status = head.status
        if status == 200:
            self.answered_at = self._tools.clock()
        elif status < 400:
            self._fails(Fault.GARBLED)
        return not self._over

    def piece(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > MAX_WHOLE:
            self._fails(Fault.GARBLED)

    def chunk(self, data: bytes, size: int) -> bool:
        return False

    def whole(self, head: Head, body: bytes) -> None:
        self._asked = None
        if self._headed(head):
            self._body = body
            self.end()

    def end(self) -> None:
        """The answer is complete; the connection is no longer its own."""
        self._asked = None
        if self._over:
            return
        try:
            event = self._read()
        except Exception as error:  # noqa: BLE001 - edge of a callback
            self._desk.broken(error)
            return
        self._ends(event)

    def fail(self, error: Exception) -> None:
        """The answer will not be complete."""
        self._asked = None
        if isinstance(error, LegError):
            self._fails(fault_of(error.refused))
        elif not self._over:
            self._desk.broken(error)

    def _read(self) -> PrefillAnswered | PrefillFailed:
        """What the answer says, which is here completely."""
        action, head, body = self._action, self._head, bytes(self._body)
        assert head is not None
        if head.status >= 400:
            if head.shape is None and not headers.is_fit(head.fields):
                return PrefillFailed(action.leg, Fault.GARBLED)
            self._answers.put(action.leg, self._job.named(head), body)
            return PrefillFailed(action.leg, Fault.STATUS, head.status)
        assert self.answered_at is not None
        found = self._tools.plan.read(body, self._meeting)
        self._answers.cached_tokens = found.cached_tokens
        if found.transfer is not None and points_at_itself(found.transfer.host):
            self._metrics.misaddressed.inc()
            own = self._job.request.at
            if own is None or own.host != action.target.host:
                return PrefillAnswered(action.leg, None, self.answered_at, MISADDRESSED)
        return PrefillAnswered(action.leg, found.transfer, self.answered_at, found.missing)

    # --- its end

    def _fails(self, fault: Fault) -> None:
        if not self._over:
            self._ends(PrefillFailed(self._action.leg, fault))

    def _ends(self, event: PrefillAnswered | PrefillFailed) -> None:
        self.drop()
        if self._timed:
            times, leg = self._desk.times, self._action.leg
            times.drop(f"{leg}.")
            times.drop(f"{leg}!")
        cancelled = isinstance(event, PrefillFailed) and event.fault is Fault.CANCELLED
        if self._head is not None and not cancelled:
            self._metrics.prefill_leg.observe(self._tools.clock() - self._began)
        self._desk.tell(event)
