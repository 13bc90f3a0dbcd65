"""The spans of one handoff: `handoff`, and below it `prefill` and `decode` for each leg. Pure.

With `traceparent` both engines learn of which trace their legs are: of the client's, or of a fresh
one where it has none. Where nothing is recorded here, the legs keep the client's own place in its
trace, for a span that nobody knows would be a hole in it. Names of attributes that begin with
`llm_d.pd_proxy.` are the reference's.
"""

from collections.abc import Sequence

from epp.tracing.context import TRACEPARENT, TRACESTATE, SpanContext, fresh, read
from epp.tracing.spans import Attribute, Running, Tracer
from sidecar.http.headers import Fields
from sidecar.http.incoming import Incoming
from sidecar.http.shapes import RequestShape

from .steps import (
    DecodeEnded,
    DecodeFailed,
    DecodeFirstByte,
    Ending,
    Event,
    Finished,
    PrefillAnswered,
    PrefillFailed,
    SendDecode,
    SendPrefill,
)

MAX_ID = 128
"""Longest request id that is told, in characters."""
_PARENT, _STATE = TRACEPARENT.encode(), TRACESTATE.encode()
_NAMES, _PARENTS = frozenset({_PARENT, _STATE}), frozenset({_PARENT})
_OURS = "llm_d.pd_proxy."
CONNECTOR = f"{_OURS}connector"


class HandoffTrace:
    """One request's."""

    __slots__ = ("_client", "_context", "_legs", "_lines", "_root")

    def __init__(self, tracer: Tracer, request: Incoming) -> None:
        client = self._client = read(request.values(TRACEPARENT))
        self._context = client or fresh(tracer.rng, tracer.share)
        self._legs: dict[str, Running] = {}
        self._root: Running | None = None
        self._lines = b""  # of `_context`, where no leg has one of its own
        if tracer.listener is not None:
            own = self._context if client is None else client.child(tracer.rng)
            request_id = (request.value("x-request-id") or "")[:MAX_ID]
            said: dict[str, Attribute] = {f"{_OURS}request_id": request_id, **tracer.attributes}
            above = None if client is None else client.span_id
            self._root = Running(tracer, "handoff", own, above, said)

    def told(self, fields: Fields, leg: str) -> Fields:
        """A leg's fields, in which its own place in the trace stands in that of the client's."""
        context = self._of(leg)
        if context is self._client:
            return fields
        taken = self._taken
        told = [field for field in fields if field[0].lower() not in taken]
        told.append((_PARENT, context.header.encode()))
        return told

    def lines(self, leg: str, shape: RequestShape, values: Sequence[bytes]) -> bytes:
        """Those fields of a leg that say so, as they are written."""
        context = self._of(leg)
        if context is not self._context:
            return self._lines_of(context, shape, values)
        if not self._lines:
            self._lines = self._lines_of(context, shape, values)
        return self._lines

    def _lines_of(
        self, context: SpanContext, shape: RequestShape, values: Sequence[bytes]
    ) -> bytes:
        if context is self._client:
            return shape.lines_of(_PARENT, values) + shape.lines_of(_STATE, values)
        kept = b"" if _STATE in self._taken else shape.lines_of(_STATE, values)
        return b"%b%b: %b\r\n" % (kept, _PARENT, context.header.encode())

    @property
    def _taken(self) -> frozenset[bytes]:
        """The client's fields that legs do not get where they get one of ours."""
        return _NAMES if self._client is None else _PARENTS

    def _of(self, leg: str) -> SpanContext:
        running = self._legs.get(leg) or self._root
        return self._context if running is None else running.context

    def begins(self, leg: SendPrefill | SendDecode) -> None:
        """A leg is sent."""
        if self._root is None:
            return
        if isinstance(leg, SendPrefill):
            found = self._root.below("prefill", **{f"{_OURS}prefill_target": str(leg.target)})
        else:
            pulls = leg.transfer is not None
            found = self._root.below("decode", **{f"{_OURS}disaggregation_used": pulls})
        self._legs[leg.leg] = found

    def note(self, event: Event) -> None:
        """Something has happened."""
        if self._root is None:
            return
        match event:
            case DecodeFirstByte(leg) if leg in self._legs:
                running = self._legs[leg]
                running.attributes["epp.first_byte_ms"] = running.age_s * 1000
            case PrefillFailed(leg, fault, status) | DecodeFailed(leg, fault, status):
                self._ends(leg, fault.value, status)
            case PrefillAnswered(leg) | DecodeEnded(leg):
                self._ends(leg)
            case _:
                pass

    def _ends(self, leg: str, failure: str | None = None, status: int = 0) -> None:
        running = self._legs.pop(leg, None)
        if running is not None:
            if status:
                running.attributes["http.response.status_code"] = status
            running.end(failure)

    def ends(self, finished: Finished | None, candidates: int) -> None:
        """The handoff is over; None: by a failure of our own."""
        root, self._root = self._root, None
        if root is None:
            return
        for leg in tuple(self._legs):
            self._ends(leg, "unfinished")
        root.attributes[f"{_OURS}prefill_candidates"] = candidates
        if finished is None:
            root.end("failed")
            return
        root.attributes[f"{_OURS}disaggregation_used"] = finished.path == "split"
        root.attributes[f"{_OURS}reason"] = finished.path
        root.attributes["epp.handoff.outcome"] = finished.ending.value
        root.end(None if finished.ending is Ending.ANSWERED else finished.ending.value)
