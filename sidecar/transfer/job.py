"""A client's request that is to be handed over, and what its legs have in common."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from epp.bodies.sharing import Api
from epp.bodies.spans import Body
from epp.protocol import REQUEST_ID
from epp.tracing.spans import Tracer
from sidecar.connectors import Plan
from sidecar.http import headers
from sidecar.http.client import Answer, Call, Head, Upstream, Whole, whole
from sidecar.http.exchange import Exchange
from sidecar.http.incoming import Incoming
from sidecar.http.passage import Passage
from sidecar.http.refusals import (
    ENGINE_ABSENT,
    ENGINE_GARBLED,
    ENGINE_LOST,
    ENGINE_SILENT,
    ENGINE_UNREACHED,
    LegError,
    Refused,
)
from sidecar.http.upload import Content
from sidecar.proxy import Limits
from sidecar.trust.breakers import Breakers
from sidecar.trust.pairs import Pairs

from .deadline import Deadline
from .door import Door
from .legs import LEG_HEADER, Leg
from .steps import Fault
from .targets import Target
from .tracing import HandoffTrace

_LEG_HEADER, _REQUEST_ID = LEG_HEADER.encode(), REQUEST_ID.encode()
MAX_WHOLE = 8 << 20
"""Longest answer that is read whole: a prefill's, or an error's."""

_FAULTS = {
    ENGINE_ABSENT: Fault.CONNECT,
    ENGINE_UNREACHED: Fault.CONNECT,
    ENGINE_LOST: Fault.LOST,
    ENGINE_SILENT: Fault.LOST,
}


@dataclass(slots=True, kw_only=True)
class Job:
    """One request. `body` is the client's own, without the parameters. Never changed once it is
    made."""

    request: Incoming
    exchange: Exchange
    passage: Passage
    body: Body
    api: Api
    targets: tuple[Target, ...]
    streams: bool
    deadline: Deadline
    trace: HandoffTrace
    source: Target | None = None
    """Who holds KV of the prompt, for engines that fetch it."""
    written: bytes | None = field(init=False)
    """The fields that all legs have in common, as they are written, where they are at hand."""

    def __post_init__(self) -> None:
        shape, values = self.request.shape, self.request.worth
        self.written = None
        if shape is not None and b"host" in shape.at:
            said = shape.at.get(b"connection", ())
            if not any(headers.names_options(values[number]) for number in said):
                self.written = shape.leg_lines(values)

    @property
    def request_id(self) -> str | None:
        """The client's own id, which it gets back where an engine answers with one."""
        return self.request.value("x-request-id")

    def named(self, head: Head) -> Head:
        """An answer's head under the client's own id, where the engine answered with one."""
        if head.shape is not None and _REQUEST_ID not in head.shape.at:
            return head
        return head.under(self.request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What legs are made with."""

    upstream: Upstream
    plan: Plan
    limits: Limits
    clock: Callable[[], float]
    tracer: Tracer
    breakers: Breakers = field(default_factory=Breakers)
    pairs: Pairs | None = None
    """None compares no engines."""
    forget: Callable[[Target], object] = lambda _: None
    """What is known of a pod's engine may hold no more."""


@dataclass(slots=True)
class Answers:
    """What legs were answered that the client hears of. It knows nothing of the request, so that
    whoever answers the client may keep it."""

    by_leg: dict[str, Whole] = field(default_factory=dict)
    """Whole error answers, one of which the client may get. Only those of the last two legs can be
    asked for: two may run at once."""
    cached_tokens: int | None = None
    """Prompt tokens that the prefill engine had in its cache, where its answer told (D14)."""

    def cached_elsewhere(self) -> int | None:
        return self.cached_tokens

    def put(self, leg: str, head: Head, body: bytes) -> None:
        while len(self.by_leg) > 1:
            del self.by_leg[next(iter(self.by_leg))]
        self.by_leg[leg] = Whole(head, body)


def call(job: Job, leg: str, body: bytes) -> Call:
    """A leg's request to the local engine."""
    written = job.written
    if written is None:
        return _call_of(job, leg, body)
    host = job.request.first(b"host") or b""
    lines = _lines(job, written, leg, host, body)
    return Call(job.request.method, job.request.target, [], Content(body), lines)


def call_at(job: Job, leg: str, at: Target, body: bytes, *, door: Door, now_s: float) -> Call:
    """The same as the sidecar `at` takes it: to its host, with the proof. `now_s` is wall-clock
    time."""
    written = job.written
    if written is None:
        return proven(_call_of(job, leg, body), leg, at, door, now_s)
    request = job.request
    lines = _lines(job, written, leg, str(at).encode(), body)
    proof = door.proof(_named(request.method, request.target, leg, at), now_s)
    if proof is not None:
        lines = b"%b%b: %b\r\n" % (lines, _LEG_HEADER, proof.encode())
    return Call(request.method, request.target, [], Content(body), lines)


def _call_of(job: Job, leg: str, body: bytes) -> Call:
    sent = leg_call(job.request, job.deadline, leg, body)
    return replace(sent, fields=job.trace.told(sent.fields, leg))


def _lines(job: Job, written: bytes, leg: str, host: bytes, body: bytes) -> bytes:
    """What `leg_call` gives, as it is written, in another order."""
    shape, values = job.request.shape, job.request.worth
    assert shape is not None
    return (
        b"host: %b\r\n%b%b%bcontent-length: %d\r\naccept-encoding: identity\r\nx-request-id: %b\r\n"
        % (
            host,
            written,
            job.deadline.lines(shape, values),
            job.trace.lines(leg, shape, values),
            len(body),
            leg.encode(),
        )
    )


def leg_call(request: Incoming, deadline: Deadline, leg: str, body: bytes) -> Call:
    """The client's own target and fields, under an id of the leg's own."""
    fields = deadline.told(headers.for_leg(request.fields, leg, len(body)))
    return Call(request.method, request.target, fields, Content(body))


def proven(sent: Call, leg: str, at: Target, door: Door, now_s: float) -> Call:
    """The same as the sidecar `at` takes it: to its host, with the proof. `now_s` is wall-clock
    time."""
    proof = door.proof(_named(sent.method, sent.target, leg, at), now_s)
    fields = headers.replaced(sent.fields, b"host", str(at).encode())
    if proof is not None:
        fields.append((_LEG_HEADER, proof.encode()))
    return replace(sent, fields=fields)


def _named(method: str, path: str, leg: str, at: Target) -> Leg:
    return Leg(method=method, path=path, request_id=leg, target=str(at))


def fault_of(refused: Refused) -> Fault:
    return _FAULTS.get(refused, Fault.GARBLED)


async def read_whole(answer: Answer, begun: bytes = b"") -> bytes:
    """An answer's whole body. Raises LegError."""
    return await whole(answer, MAX_WHOLE, LegError(ENGINE_GARBLED), begun)
