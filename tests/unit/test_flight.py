"""What a routed request tells of its answer: who served, what it took, what every candidate got."""

from typing import Any

import msgspec
import pytest

from epp._pb import extproc_pb2 as pb
from epp.bodies.usage import Usage
from epp.observe.metrics import Metrics
from epp.request.director import PickSettings
from epp.request.exchange import Route
from epp.request.scores import MAX_ROWS
from tests.fakes import extproc_messages as envoy
from tests.fakes.desk import Desk, ask, open_desk
from tests.fakes.watched import watched

TOKENS = list(range(640))
BASE = 'fairness_id="default-flow",model_name="m",priority="0",'


def samples(desk: Desk, metrics: Metrics) -> dict[str, float]:
    """What the page says of answers, by name without prefix and labels."""
    metrics.refresh(desk.now)
    found: dict[str, float] = {}
    for line in metrics.text().decode().splitlines():
        name, _, value = line.rpartition(" ")
        if not line.startswith("#") and "_bucket" not in name and "_created" not in name:
            found[name.partition("{")[0].removeprefix("llm_d_epp_")] = float(value)
    return found


async def shown(desk: Desk, **fields: Any) -> Route:
    return await desk.route(ask(TOKENS, **fields), answer_shown=True)


async def test_load_goes_to_the_second_of_the_list_when_that_one_serves() -> None:
    async with open_desk(3, settings=PickSettings(destinations=2)) as desk:
        route = await desk.route(ask(TOKENS))
        first, second = route.destination.split(",")
        route.progress.response_headers(200, second)
        loads = {e.address: e.load.reserved_requests for e in desk.pool.ready(desk.now)}
        assert (loads[first], loads[second]) == (0, 1)
        assert desk.witness.answers == [(200, False)]
        again = await desk.route(ask(TOKENS))
        assert again.destination.split(",")[0] == second
        for progress in (route.progress, again.progress):
            progress.finished()
        assert desk.reserved() == 0


@pytest.mark.parametrize("served", [None, "", "the first"])
async def test_an_answer_from_whom_we_named_moves_nothing(served: str | None) -> None:
    async with open_desk(2) as desk:
        route = await desk.route(ask(TOKENS))
        address = route.destination if served == "the first" else served
        route.progress.response_headers(200, address)
        loads = {e.address: e.load.reserved_requests for e in desk.pool.ready(desk.now)}
        assert loads[route.destination] == 1
        assert desk.witness.answers == [(200, True)]


async def test_a_stream_that_comes_through_us_is_measured() -> None:
    async with watched() as (desk, metrics, _):
        route = await shown(desk)
        assert samples(desk, metrics)["request_running"] == 1
        desk.now += 0.5
        route.progress.response_headers(200, None, streaming=True)
        for _ in range(5):
            desk.now += 0.1
            route.progress.body(20)
        route.progress.body(0)
        route.progress.usage(Usage(640, 64, 5))
        route.progress.finished()
        found = samples(desk, metrics)
    assert found["request_running"] == 0
    assert found["request_ttft_seconds_sum"] == pytest.approx(0.6)
    assert found["request_streaming_itl_seconds_count"] == 4
    assert found["request_streaming_tpot_seconds_sum"] == pytest.approx(0.1)
    assert found["request_duration_seconds_sum"] == pytest.approx(1.0)
    assert found["request_ntpot_seconds_sum"] == pytest.approx(0.2)
    assert found["response_size_bytes_sum"] == 100
    assert [found[f"request_{kind}_tokens_sum"] for kind in ("input", "cached", "output")] == [
        640,
        64,
        5,
    ]


async def test_what_does_not_come_through_us_has_no_series() -> None:
    async with watched() as (desk, metrics, _):
        hidden = await desk.route(ask(TOKENS))
        bodiless = await desk.route(method="GET", path="/v1/models", answer_shown=True)
        for route in (hidden, bodiless):
            route.progress.response_headers(200, None)
            route.progress.finished()
        found = samples(desk, metrics)
    assert not [name for name in found if name.startswith(("request_running", "request_ttft"))]


@pytest.mark.parametrize("end", ["an error", "a cut", "a late decision", "headers alone"])
async def test_whatever_ends_a_request_nothing_runs_afterwards(end: str) -> None:
    async with watched() as (desk, metrics, _):
        progress = (await shown(desk)).progress
        if end != "a late decision":
            progress.response_headers(503 if end == "an error" else 204, None)
        if end in {"a cut", "a late decision"}:
            progress.reset(answered=end == "a cut")
        else:
            progress.finished()
        progress.finished()
        progress.reset(answered=True)
        found = samples(desk, metrics)
    assert found["request_running"] == 0
    assert ("request_duration_seconds_count" in found) == (end == "headers alone")
    assert "request_ttft_seconds_count" not in found


async def test_the_gateway_is_told_every_candidates_score() -> None:
    async with open_desk(40, settings=PickSettings(emit_scores=True)) as desk:
        desk.report(list(range(40)))
        route = await desk.route(ask(TOKENS))
        table = desk.witness.last.table
    scores = dict(route.scores)
    assert len(scores) == 40
    assert max(scores, key=scores.__getitem__) == route.destination
    assert len(table) == MAX_ROWS
    assert scores[table[0].address] == table[0].total


async def test_scores_are_absent_where_nobody_asked_or_nothing_was_scored() -> None:
    async with open_desk(2) as desk:
        assert (await desk.route(ask(TOKENS))).scores == ()
    async with open_desk(2, settings=PickSettings(emit_scores=True)) as desk:
        desk.switch.switch("random")
        assert (await desk.route(ask(TOKENS))).scores == ()
        desk.switch.switch("load-only")
        assert len((await desk.route(ask(TOKENS))).scores) == 2


@pytest.mark.parametrize("mode", [pb.NONE, pb.FULL_DUPLEX_STREAMED])
async def test_the_gateways_mode_says_whether_answers_are_measured(mode: int) -> None:
    async with watched() as (desk, metrics, _):
        stream = envoy.a_stream()
        stream.receive(envoy.request_headers(response_mode=mode))
        body = msgspec.json.encode(ask(TOKENS))
        arrival = envoy.arrival_in(stream.receive(envoy.request_body(body, end=True)))
        stream.decided(await desk.director.decide(arrival))
        stream.receive(envoy.response_headers(more=[("content-type", "Text/Event-Stream")]))
        if mode == pb.FULL_DUPLEX_STREAMED:
            usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":10}}'
            for event in (b"data: {}\n\n", usage + b"\n\ndata: [DONE]\n\n"):
                stream.receive(envoy.response_body(event))
            stream.receive(envoy.response_body(end=True))
        stream.closed()
        found = samples(desk, metrics)
    assert ("request_running" in found) == (mode != pb.NONE)
    assert found.get("request_input_tokens_sum") == (7 if mode else None)
    assert found.get("request_streaming_itl_seconds_count") == (1 if mode else None)
