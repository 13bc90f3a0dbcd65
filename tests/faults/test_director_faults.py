"""Field faults of what gateways and clients say of a request: headers, names, labels, words."""

import io
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.bodies.usage import Usage
from epp.errors import Refusal
from epp.framework import Request
from epp.observe import logs
from epp.request.exchange import Route
from epp.request.stream import Stream
from tests.fakes import extproc_messages as envoy
from tests.fakes.desk import Desk, ask, open_desk
from tests.fakes.watched import watched

REWRITE = protocol.MODEL_REWRITE[0]
REQUEST = Request(id="r", api="completions", path="/v1/completions", model="m", target_model="m")


@pytest.fixture
def default_logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


async def routed(
    desk: Desk, headers: Any, body: bytes, **modes: int
) -> tuple[Stream, list[pb.ProcessingResponse]]:
    """The request through a stream and the director, and what the gateway was told."""
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(headers, **modes))
    arrival = envoy.arrival_in(stream.receive(envoy.request_body(body, end=True)))
    return stream, envoy.sent(stream.decided(await desk.director.decide(arrival)))


async def test_A12_a_rewritten_model_has_the_clients_name_in_every_event() -> None:
    """Protected by `model=understood.model` in `PickDirector._route`. Red when the route does not
    carry both names: the engine's then shows in the answer."""
    async with open_desk() as desk:
        stream, replies = await routed(
            desk,
            {":path": "/v1/completions", ":method": "POST", REWRITE: "inner-7"},
            b'{"model": "nice", "prompt": "hi", "x": 1e2}',
            response_mode=pb.FULL_DUPLEX_STREAMED,
        )
        (sent,) = envoy.streamed(replies, "request_body")
        assert sent.body == b'{"model": "inner-7", "prompt": "hi", "x": 1e2}'
        stream.receive(envoy.response_headers(more=[("content-type", "text/event-stream")]))
        event = b'data: {"model":"inner-7","choices":[]}\n\n'
        seen = b""
        for _ in range(3):
            pieces = envoy.sent(stream.receive(envoy.response_body(event)))
            seen += b"".join(piece.body for piece in envoy.streamed(pieces, "response_body"))
        assert seen == event.replace(b"inner-7", b"nice") * 3


async def test_A12_a_form_keeps_the_clients_name_and_says_so() -> None:
    """Protected by `rewrite.with_model`, which gives None. Red when the route claims two names for
    a body that it did not change."""
    async with open_desk() as desk:
        route = await desk.route(
            b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nnice\r\n--b--\r\n',
            path="/v1/audio/transcriptions",
            headers={"content-type": "multipart/form-data; boundary=b", REWRITE: "inner-7"},
        )
        decision, request, _ = desk.witness.decisions[0]
    assert (route.body, route.model) == (None, None)
    assert (request.model, request.target_model) == ("nice", "nice")
    assert "model not rewritten: not plain JSON" in decision.reasons


@pytest.mark.parametrize("value", ["abc", "-5", "0", "1e999", "nan", "", "1,2", "٣"])
@pytest.mark.parametrize("name", [*protocol.SLO_TTFT_MS, *protocol.SLO_TPOT_MS])
async def test_B09_an_slo_header_that_is_no_time_is_ignored_and_counted(
    name: str, value: str
) -> None:
    """Protected by `hints._limit_s`. Red when what `float` cannot read is let through."""
    async with watched() as (desk, metrics, _):
        route = await desk.route(ask(), headers={name: value})
        metrics.refresh(desk.now)
        assert route.destination
        word = "slo-ttft" if name in protocol.SLO_TTFT_MS else "slo-tpot"
        line = f'epp_ignored_headers_total{{header="{word}"}} 1.0'
        assert line in metrics.text().decode().splitlines()


@pytest.mark.parametrize(
    "spelling", [str.lower, str.upper, str.title], ids=["lower", "upper", "title"]
)
async def test_G02_nothing_that_a_client_says_steers_its_request(spelling: Any) -> None:
    """Protected by the test for `conformance` in `PickDirector._within`. Red when the headers of
    the conformance tests choose the endpoint in production."""
    steering = (*protocol.ROUTING_HEADERS, *protocol.GATEWAY_HEADERS)
    headers = [(":path", "/v1/completions"), (":method", "POST")]
    for name in steering:
        headers += [(spelling(name), "10.0.0.3:8000"), (name, "10.0.0.3:8000")]
    async with open_desk(4) as desk:
        desk.report([0, 0, 0, 100])
        _, replies = await routed(desk, headers, json.dumps(ask()).encode())
        chosen = desk.witness.last.chosen[0]
    mutation = replies[0].request_headers.response.header_mutation
    put = envoy.set_in(mutation)
    assert chosen.address != "10.0.0.3:8000"
    assert put[protocol.DESTINATION] == chosen.address
    assert "10.0.0.3:8000" not in put.values()
    assert set(steering) <= set(mutation.remove_headers) | put.keys()


@pytest.mark.parametrize("name", ["model", "x-gateway-model-name", "X-Model"])
async def test_G03_the_model_that_counts_is_the_bodys(name: str) -> None:
    """Protected by `understanding._read`. Red when a header `model` is believed."""
    async with open_desk() as desk:
        await routed(desk, {name: "cheap"}, b'{"model": "expensive", "prompt": "hi"}')
        request = desk.witness.decisions[0][1]
    assert (request.model, request.target_model) == ("expensive", "expensive")


@pytest.mark.parametrize("objective", ["no-such-objective", "", "-7", "a,b", "x" * 5000, "\x80"])
async def test_G06_an_objective_that_nobody_knows_has_the_default_priority(objective: str) -> None:
    """Protected by `Objectives.priority`, which takes declared names. Red when the name is read as
    one."""
    async with open_desk() as desk:
        await desk.route(ask(), headers={protocol.OBJECTIVE[0]: objective})
        request = desk.witness.decisions[0][1]
    assert request.priority == 0
    assert len(request.objective) <= 256


async def test_G07_ten_thousand_fairness_ids_make_no_more_series_than_a_few_hundred() -> None:
    """Protected by `LabelSets._admit`. Red when every combination of labels is let through."""
    async with watched() as (desk, metrics, _):
        for number in range(10_000):
            asked = replace(REQUEST, fairness_id=f"id-{number}")
            metrics.meters(asked, 100, 0.0).end(1.0, Usage(), good=True)
        metrics.refresh(desk.now)
        page = metrics.text().decode()
    running = [line for line in page.splitlines() if line.startswith("llm_d_epp_request_running{")]
    assert len(running) <= 401
    assert any('fairness_id="other",model_name="m"' in line for line in running)
    assert all(line.endswith(" 0.0") for line in running)


@pytest.mark.usefixtures("default_logs")
async def test_G09_a_prompt_is_in_no_log_no_metric_no_error_and_no_explanation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protected by `logs.without_words`. Red when a traceback ends with what failed."""
    canary = "canary" * 2
    here = io.StringIO()
    monkeypatch.setattr(sys, "stderr", here)
    logs.configure("info", "json")

    async def quoting(_: str, fields: Any) -> bytes:
        raise RuntimeError(f"cannot read {fields!r}")

    refusals: list[Refusal] = []
    async with watched(tokenizer=quoting) as (desk, metrics, explain):
        for body in (
            ask(f"{canary} " * 100),
            {"model": "m", "messages": [{"role": "user", "content": canary}]},
            f'{{"model": "m", "prompt": "{canary}'.encode(),
            f'{{"prompt": "{canary}"}}'.encode(),
            ask({canary: canary}),
        ):
            for path in ("/v1/completions", "/v1/chat/completions"):
                outcome = await desk.decide(body, path=path)
                if not isinstance(outcome, Route):
                    refusals.append(outcome)
        metrics.refresh(desk.now)
        page, told = metrics.text().decode(), json.dumps(explain.last())
    assert "tokenizer call failed" in here.getvalue()
    assert refusals
    for text in (here.getvalue(), page, told, *map(str, refusals)):
        assert canary not in text


@pytest.mark.parametrize(
    "name", ['a"b', "a\nb", "a\\b", "a{b}", "\ud83d", "é" * 60, "m" * 5000, "\x00", "}", "# HELP x"]
)
async def test_G10_no_name_of_a_model_spoils_the_metrics(name: str) -> None:
    """Protected by `labels.Bounded`. Red when what cannot be printed becomes a label."""
    async with watched() as (desk, metrics, explain):
        await desk.route(ask())
        decision = explain._entries[0].decision
        request = replace(REQUEST, model=name, target_model=name, fairness_id=name)
        metrics.decided(decision, request, "ok", 0.1)
        metrics.answered(request, 500, as_told=True)
        metrics.meters(request, 1, 0.0).end(1.0, Usage(), good=True)
        metrics.refresh(desk.now)
        page = metrics.text().decode()
    families = {family.name for family in text_string_to_metric_families(page)}
    assert "llm_d_epp_request" in families
    assert "llm_d_epp_request_running" in families


async def test_G15_requests_leave_an_endpoint_that_never_answers() -> None:
    """Protected by the charge in `PickDirector._route`. Red when requests in flight are not
    charged: the stuck endpoint looks idle for ever, for its own page says so."""
    async with open_desk(4) as desk:
        shares: Counter[str] = Counter()
        for number in range(120):
            desk.now += 0.2
            desk.report([0, 0, 0, 0])
            route = await desk.route(ask(f"{number} " * 200))
            if number >= 20:
                shares[route.destination] += 1
            if route.destination != desk.members[0].address:
                route.progress.response_headers(200, None)
                route.progress.body(10)
                route.progress.finished()
    assert shares[desk.members[0].address] < 10
    assert len(shares) >= 3
