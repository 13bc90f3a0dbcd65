"""Requests in their traces: how each was decided, and how it ended.

`gateway.request` lasts from a request's arrival to the end of its answer. Below it are
`gateway.request_orchestration`, the decision, and whatever the pod tells, which finds its place by
`traceparent`. All of that is for traces that are recorded: other requests pass as they came. Names
without `epp.` are the reference's, or OpenTelemetry's for HTTP.
"""

from collections.abc import Sequence
from dataclasses import replace

from epp import protocol
from epp.bodies.usage import Usage
from epp.errors import Refusal
from epp.framework import Decision, Request
from epp.tracing.context import TRACEPARENT, TRACESTATE, fresh, read
from epp.tracing.spans import Running, Tracer

from .exchange import Arrival, Director, Outcome, Progress

MAX_TEXT = 128
"""Longest text of a client that is told, in characters."""
SERVER_ERROR = 500
"""OpenTelemetry calls an answer to a request failed from this status on."""


class Heard:
    """A `neighbours.Observer` that keeps the latest decision until it is taken."""

    def __init__(self) -> None:
        self._latest: tuple[Decision, Request, str] | None = None

    def take(self) -> tuple[Decision, Request, str] | None:
        latest, self._latest = self._latest, None
        return latest

    def decided(self, decision: Decision, request: Request, why: str, took_s: float) -> None:
        self._latest = decision, request, why

    def refused(self, refusal: Refusal) -> None:
        pass

    def failed(self, step: str) -> None:
        pass

    def ignored(self, header: str) -> None:
        pass

    def answered(self, request: Request, status: int, *, as_told: bool) -> None:
        pass

    def shadowed(self, request: Request, *, agreed: bool | None) -> None:
        pass


class Traced:
    """A `Director` that traces what another one decides."""

    def __init__(self, director: Director, heard: Heard, tracer: Tracer) -> None:
        """`heard` observes everybody who decides behind `director`."""
        self._director = director
        self._heard = heard
        self._tracer = tracer

    async def decide(self, arrival: Arrival) -> Outcome:
        rng = self._tracer.rng
        client = read((arrival.headers.get(TRACEPARENT, ""),))
        context = client or fresh(rng, self._tracer.share)
        if not context.sampled:
            return await self._director.decide(arrival)
        above = None
        if client is not None:
            context, above = client.child(rng), client.span_id
        root = Running(self._tracer, "gateway.request", context, above, _of(arrival))
        decision = root.below("gateway.request_orchestration")
        try:
            outcome = await self._director.decide(arrival)
        except BaseException:
            self._heard.take()
            decision.end("unfinished")
            root.end("unfinished")
            raise
        # A director tells of a decision and returns without a wait between: it is this one.
        heard = self._heard.take()
        if isinstance(outcome, Refusal):
            root.attributes["http.response.status_code"] = outcome.status
            decision.end(outcome.reason)
            root.end(outcome.reason)
            return outcome
        if heard is not None:
            _tell(decision, *heard)
        decision.end()
        removed = outcome.remove_headers
        return replace(
            outcome,
            progress=Followed(outcome.progress, root),
            set_headers=(*outcome.set_headers, (TRACEPARENT, context.header)),
            remove_headers=(*removed, TRACESTATE) if client is None else removed,
        )


class Followed:
    """A `Progress` that ends a request's span."""

    __slots__ = ("_inner", "_root")

    def __init__(self, inner: Progress, root: Running) -> None:
        self._inner = inner
        self._root = root

    def response_headers(
        self, status: int, served: str | None, *, streaming: bool = False
    ) -> Sequence[tuple[str, str]]:
        self._root.attributes["http.response.status_code"] = status
        if served:
            self._root.attributes["epp.served_by"] = served[:MAX_TEXT]
        return self._inner.response_headers(status, served, streaming=streaming)

    def body(self, size: int) -> None:
        self._inner.body(size)

    def usage(self, usage: Usage) -> None:
        self._inner.usage(usage)

    def finished(self) -> None:
        self._inner.finished()
        self._end()

    def reset(self, *, answered: bool) -> None:
        self._inner.reset(answered=answered)
        if answered:  # many a gateway shows no more of an answer than that it began
            self._end()
        else:
            self._root.end("unanswered")

    def _end(self) -> None:
        status = self._root.attributes.get("http.response.status_code", 0)
        failed = isinstance(status, int) and status >= SERVER_ERROR
        self._root.end("engine-error" if failed else None)


def _of(arrival: Arrival) -> dict[str, str | int | float | bool]:
    """What is known of a request when it comes. No query: it may hold secrets."""
    return {
        "http.request.method": arrival.method[:MAX_TEXT],
        "url.path": arrival.path.partition("?")[0][:MAX_TEXT],
        "epp.request_id": arrival.headers.get(protocol.REQUEST_ID, "")[:MAX_TEXT],
    }


def _tell(span: Running, decision: Decision, request: Request, why: str) -> None:
    """Say what was decided, and by which numbers of the endpoint that was chosen."""
    first, told = decision.chosen[0], span.attributes
    told["target_model"] = (request.target_model or request.model)[:MAX_TEXT]
    told["request_prio"] = request.priority
    told["epp.decision_id"] = decision.request_id
    told["epp.endpoint"] = str(first.id)
    told["epp.destination"] = ",".join(one.address for one in decision.chosen)
    told["epp.rung"] = decision.rung.name.lower()
    told["epp.why"] = why
    told["epp.profile"] = decision.profile
    told["epp.prompt_tokens"] = request.prompt_tokens
    told["epp.cached_tokens"] = first.match.tokens
    told["epp.split"] = decision.split
    if decision.prefill:
        told["epp.prefill"] = ",".join(one.address for one in decision.prefill)
    if decision.encode:
        told["epp.encode"] = ",".join(one.address for one in decision.encode)
    for row in decision.table[:1]:
        told["epp.score"] = row.total
        told.update({f"epp.score.{name}": score for name, score in row.scores.items()})
