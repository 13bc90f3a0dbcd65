"""The decode leg: the local engine's answer, held back until it is known to be a good one."""

from typing import Protocol

from sidecar.http import headers
from sidecar.http.client import Asked, Head, NearClient
from sidecar.http.outflow import Outflow
from sidecar.http.refusals import ENGINE_ABSENT, ENGINE_LOST, ENGINE_UNREACHED, LegError
from sidecar.proxy import Journal

from .job import MAX_WHOLE, Answers, Job, Tools, call, fault_of
from .openings import Opening, Verdict
from .steps import ClientGone, DecodeEnded, DecodeFailed, DecodeFirstByte, Event, Fault, SendDecode
from .times import Times

_FLOW = "flow"


class Desk(Protocol):
    """What a leg needs of its handoff."""

    times: Times

    def tell(self, event: Event) -> None:
        """Something has happened."""

    def broken(self, error: Exception) -> None:
        """We have failed."""


class DecodeLeg:
    """One leg. A `http.client.Listener`. It tells of its one end; before that it tells once of a
    first byte, of an answer that is good so far, and nothing goes to the client unless `goes` is
    set by then.
    """

    __slots__ = ("_answers", "_asked", "_desk", "_error", "_fault", "_flows_since", "_head", "_job",
                 "_journal", "_near", "_opening", "_outflow", "_over", "_probe", "_told", "_tools",
                 "first_at", "goes", "name")  # fmt: skip
    _head: Head
    _opening: Opening

    def __init__(
        self,
        name: str,
        *,
        job: Job,
        tools: Tools,
        journal: Journal,
        answers: Answers,
        desk: Desk,
        near: NearClient | None,
    ) -> None:
        """`near` is the client, if it takes bytes as they go over the wire."""
        self.name = name
        self.goes = False
        """Whether somebody gets the answer."""
        self.first_at: float | None = None
        """When the first byte came."""
        self._job = job
        self._tools = tools
        self._journal = journal
        self._answers = answers
        self._desk = desk
        self._near = near
        self._asked: Asked | None = None
        self._told = self._probe = False  # whether its first words say if it is good
        self._error: bytearray | None = None  # the body of an error answer
        self._fault = Fault.STATUS
        self._outflow: Outflow | None = None
        self._flows_since = 0.0
        self._over = False

    def send(self, action: SendDecode) -> None:
        job, plan, transfer = self._job, self._tools.plan, action.transfer
        if action.deadline is not None and self._tools.clock() > action.deadline:
            self._ends(DecodeFailed(self.name, Fault.LATE))
            return
        self._probe = action.probe
        # Without parameters no pull can have failed, and nothing need be held back.
        self._told = transfer is not None or action.probe
        if transfer is None:
            body = job.body.raw if action.probe else plan.alone(job.body, job.api)
        else:
            write = plan.release if action.release else plan.decode
            body = write(job.body, job.api, transfer.take())
        sent = call(job, self.name, body)
        self._asked = self._tools.upstream.ask(self, sent, once=transfer is not None)

    def cancel(self) -> None:
        """End it at once. No byte of it goes to the client any more."""
        self._fails(Fault.CANCELLED)

    def drop(self) -> None:
        """The same, and nobody is told."""
        self._over = True
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.drop()
        outflow, self._outflow = self._outflow, None
        if outflow is not None:
            outflow.stop()

    # --- what the engine's connection tells

    def begin(self, head: Head) -> None:
        # A reader that knows its shape has looked for control characters already.
        if head.status < 200 or (head.shape is None and not headers.is_fit(head.fields)):
            self._fails(Fault.GARBLED)
            return
        self._head = self._job.named(head)
        if head.status >= 400:
            self._error = bytearray()
        else:
            kind = head.content.kind if self._told else ""
            self._opening = Opening(kind, probe=self._probe)

    def piece(self, data: bytes) -> None:
        if self._over:
            return
        if self._outflow is not None:
            self._outflow.take(data)
        elif self._error is not None:
            self._collect(data)
        else:
            if self.first_at is None:
                self.first_at = self._tools.clock()
            if self._opening.feed(data) is not Verdict.UNDECIDED:
                self._decide()

    def chunk(self, data: bytes, size: int) -> bool:
        return self._outflow is not None and self._outflow.chunk(data, size)

    def whole(self, head: Head, body: bytes) -> None:
        self._asked = None
        self.begin(head)
        if self._over:
            return
        if self._error is None and self._opening.verdict is Verdict.GOOD:
            self.first_at = self._tools.clock()
            self._flow(body, whole=True)
            return
        self.piece(body)
        if not self._over:
            self.end()

    def end(self) -> None:
        """The answer is complete; the connection is no longer its own."""
        self._asked = None
        if self._over:
            return
        if self._error is None and self._outflow is None:
            self._opening.finish()
            self._decide()
        if self._outflow is not None:
            self._outflow.end()
        elif self._error is not None:
            self._answers.put(self.name, self._head, bytes(self._error))
            self._ends(DecodeFailed(self.name, self._fault, self._head.status))

    def fail(self, error: Exception) -> None:
        """The answer will not be complete."""
        self._asked = None
        if self._over:
            return
        if not isinstance(error, LegError):
            self._desk.broken(error)
            return
        refused = error.refused
        if refused is ENGINE_ABSENT:
            self._journal.engine_refused()
        elif refused in (ENGINE_UNREACHED, ENGINE_LOST):
            self._journal.engine_suspect()
        self._fails(fault_of(refused))

    # ---

    def _collect(self, data: bytes) -> None:
        assert self._error is not None
        self._error += data
        if len(self._error) > MAX_WHOLE:
            self._fails(Fault.GARBLED)

    def _decide(self) -> None:
        """It is known what the answer begins with."""
        opening = self._opening
        if opening.verdict is Verdict.COLD:
            self._fails(Fault.COLD, self._head.status)
        elif opening.verdict is Verdict.ERROR_EVENT:
            self._error, self._fault = opening.held, Fault.ERROR_EVENT
        else:
            self._flow(bytes(opening.held), whole=False)

    def _flow(self, begun: bytes, *, whole: bool) -> None:
        """The answer is good so far: it goes to the client, if somebody gets it."""
        self._desk.tell(DecodeFirstByte(self.name))
        if self._over or not self.goes:
            return
        outflow = self._outflow = Outflow(
            self._job.passage, read_on=self._read_on, over=self._passed, broken=self._unwritten
        )
        if whole:
            outflow.whole(self._head, begun, self._near)
        else:
            outflow.open(self._head)
            if begun:
                outflow.take(begun)
        if not self._over:
            self._flows_since = self._tools.clock()
            self._look_on()

    def _read_on(self, reads: bool) -> None:
        if self._asked is not None:
            self._asked.read_on(reads)

    def _passed(self) -> None:
        self._ends(DecodeEnded(self.name))

    def _unwritten(self, error: Exception) -> None:
        """The client's connection took no more, or we have failed."""
        if not isinstance(error, ConnectionError):
            self._desk.broken(error)
            return
        self._desk.tell(ClientGone())
        self._fails(Fault.CANCELLED)

    def _look_on(self) -> None:
        """Give it up when it falls silent in mid-answer, or lasts too long."""
        if self._over:
            return
        limits, now = self._tools.limits, self._tools.clock()
        moved = max(self._flows_since, self._job.passage.moved)
        left_s = min(
            moved + limits.idle_timeout_s - now, self._flows_since + limits.total_timeout_s - now
        )
        if left_s <= 0:
            self._fails(Fault.LOST)
        else:
            self._desk.times.set(_FLOW, left_s, self._look_on)

    # --- its end

    def _fails(self, fault: Fault, status: int = 0) -> None:
        if not self._over:
            self.drop()
            self._desk.tell(DecodeFailed(self.name, fault, status))

    def _ends(self, event: DecodeEnded | DecodeFailed) -> None:
        if not self._over:
            self._over = True
            self._desk.tell(event)
