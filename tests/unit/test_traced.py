"""What a picker tells of the requests of a trace."""

import asyncio
import random
from collections.abc import Mapping

import pytest

from epp import protocol
from epp.errors import NoEndpoint
from epp.framework import (
    Decision,
    Endpoint,
    EndpointId,
    Incarnation,
    Match,
    PoolId,
    Request,
    Rung,
    ScoreRow,
    Source,
)
from epp.request.exchange import Arrival, Outcome, Route
from epp.request.neighbours import Observer
from epp.request.traced import Heard, Traced
from epp.tracing.context import read
from epp.tracing.spans import Span, Tracer
from tests.fakes.director import RecordingProgress, ScriptedDirector, route

TRACE, PARENT = "a" * 31 + "1", "b" * 16
CLIENT = f"00-{TRACE}-{PARENT}-01"
HERE = EndpointId(PoolId("default/pool"), "pod-0", 8000)
REQUEST = Request(
    id="d-1", api="completions", path="/v1/completions", model="m", target_model="m-2",
    priority=2, prompt_tokens=100,
)  # fmt: skip
CHOSEN = Endpoint(
    id=HERE,
    address="10.0.0.1:8000",
    incarnation=Incarnation(HERE, 1),
    match=Match(64, Source.PRECISE),
)
DECISION = Decision(
    request_id="d-1",
    chosen=(CHOSEN,),
    rung=Rung.PRECISE,
    reasons=(),
    table=[ScoreRow(endpoint=HERE, address=CHOSEN.address, total=0.75, scores={"queue": 0.5})],
)


class Told(list[Span]):
    def take(self, span: Span, /) -> None:
        self.append(span)


class Desk:
    """A traced director that decides the same each time."""

    def __init__(self, outcome: Outcome | None = None, share: float = 1.0) -> None:
        self.progress = RecordingProgress()
        self.outcome = outcome or route(CHOSEN.address, progress=self.progress)
        self.told = Told()
        heard = Heard()
        self.observer: Observer = heard
        self.inner = ScriptedDirector(self._decide)
        tracer = Tracer(
            rng=random.Random(1), wall_s=iter(range(1000)).__next__, share=share, listener=self.told
        )
        self.director = Traced(self.inner, heard, tracer)

    def _decide(self, _: Arrival) -> Outcome:
        if isinstance(self.outcome, Route):
            self.observer.decided(DECISION, REQUEST, "ok", 0.001)
        return self.outcome

    async def ask(self, headers: Mapping[str, str]) -> Outcome:
        usual = {":path": "/v1/completions?key=secret", ":method": "POST", "x-request-id": "mine"}
        return await self.director.decide(Arrival(headers={**usual, **headers}))

    async def route(self, **headers: str) -> Route:
        found = await self.ask(headers)
        assert isinstance(found, Route)
        return found


async def test_a_request_is_told_with_its_decision_and_its_end() -> None:
    desk = Desk()
    found = await desk.route(traceparent=CLIENT)
    found.progress.response_headers(200, CHOSEN.address)
    found.progress.body(10)
    found.progress.finished()
    assert desk.progress.events == [
        ("headers", 200, CHOSEN.address),
        ("body", 10),
        ("finished",),
    ]
    decided, request = desk.told
    assert (request.name, request.parent, request.context.trace_id) == (
        "gateway.request",
        PARENT,
        TRACE,
    )
    assert request.attributes == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "epp.request_id": "mine",
        "epp.served_by": CHOSEN.address,
    }
    assert (decided.name, decided.parent) == (
        "gateway.request_orchestration",
        request.context.span_id,
    )
    assert decided.attributes == {
        "target_model": "m-2",
        "request_prio": 2,
        "epp.decision_id": "d-1",
        "epp.endpoint": str(HERE),
        "epp.destination": CHOSEN.address,
        "epp.rung": "precise",
        "epp.why": "ok",
        "epp.profile": "default",
        "epp.prompt_tokens": 100,
        "epp.cached_tokens": 64,
        "epp.split": "never",
        "epp.score": 0.75,
        "epp.score.queue": 0.5,
    }
    assert request.failure is decided.failure is None
    assert request.began_s <= decided.began_s <= decided.ended_s <= request.ended_s


async def test_the_pod_finds_itself_below_the_request() -> None:
    desk = Desk()
    found = await desk.route(traceparent=CLIENT, tracestate="x=1")
    found.progress.finished()
    (_, header), *others = [one for one in found.set_headers if one[0] == "traceparent"]
    assert not others
    assert read([header]) == desk.told[-1].context
    assert "tracestate" not in found.remove_headers


async def test_a_trace_that_begins_here_takes_what_could_not_be_read_away() -> None:
    desk = Desk()
    found = await desk.route(traceparent="00-zz", tracestate="x=1")
    found.progress.finished()
    assert desk.told[-1].parent is None
    assert dict(found.set_headers)["traceparent"] == desk.told[-1].context.header
    assert found.remove_headers == ("tracestate",)


@pytest.mark.parametrize(
    ("headers", "share"), [({"traceparent": CLIENT[:-1] + "0"}, 1.0), ({}, 0.0)]
)
async def test_a_request_that_is_not_recorded_passes_as_it_came(
    headers: Mapping[str, str], share: float
) -> None:
    desk = Desk(share=share)
    assert await desk.ask(headers) is desk.outcome
    assert desk.told == []


async def test_a_refusal_ends_both_spans_with_its_reason() -> None:
    refusal = NoEndpoint("nobody is ready")
    desk = Desk(refusal)
    assert await desk.ask({}) is refusal
    assert [span.failure for span in desk.told] == [refusal.reason] * 2
    assert desk.told[-1].attributes["http.response.status_code"] == refusal.status


@pytest.mark.parametrize(
    ("status", "end", "failure"),
    [
        (200, "reset", None),  # the gateway shows no body
        (404, "finished", None),
        (503, "finished", "engine-error"),
        (0, "reset", "unanswered"),
    ],
)
async def test_the_end_of_a_request_says_whether_it_failed(
    status: int, end: str, failure: str | None
) -> None:
    desk = Desk()
    progress = (await desk.route()).progress
    if status:
        progress.response_headers(status, None)
    if end == "finished":
        progress.finished()
    else:
        progress.reset(answered=bool(status))
    assert desk.told[-1].failure == failure
    assert len(desk.progress.ends) == 1


async def test_a_decision_that_is_cut_is_told_and_is_nobody_elses() -> None:
    desk = Desk()

    async def decide_and_hang() -> Outcome:
        desk.observer.decided(DECISION, REQUEST, "ok", 0.001)
        await asyncio.Event().wait()
        return desk.outcome

    desk.inner.script = lambda _: decide_and_hang()
    async with asyncio.TaskGroup() as tg:
        task = tg.create_task(desk.ask({}))
        await asyncio.sleep(0)
        task.cancel()
    assert [span.failure for span in desk.told] == ["unfinished"] * 2
    desk.inner.script = lambda _: desk.outcome
    (await desk.route()).progress.finished()
    assert desk.told[-2].attributes == {}


async def test_what_a_client_says_is_told_in_its_beginning_only() -> None:
    desk = Desk()
    long = {":path": "/" + "p" * 500, protocol.REQUEST_ID: "i" * 500}
    found = await desk.ask(long)
    assert isinstance(found, Route)
    found.progress.finished()
    assert all(len(str(value)) <= 128 for value in desk.told[-1].attributes.values())
