"""Metrics and the last decisions."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from epp import protocol
from epp.errors import NoEndpoint
from epp.framework import Request
from epp.observe import catalogue
from epp.observe.explain import MAX_DECISIONS, Explain
from epp.observe.labels import MAX_LABEL_CHARS, Bounded, LabelSets
from epp.observe.metrics import Metrics
from epp.observe.state_numbers import StateNumbers
from epp.request.attempts import Attempts
from epp.state.records import Done, Outcome
from epp.tracing.queue import SpanQueue
from tests.fakes.desk import Desk, ask, open_desk, post
from tests.fakes.watched import process_of, watched

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def page(desk: Desk, metrics: Metrics) -> dict[str, float]:
    """Samples of the page by name with labels."""
    metrics.refresh(desk.now)
    lines = metrics.text().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def test_the_documented_table_is_the_one_in_the_code() -> None:
    assert DOCS.read_text() == catalogue.page(), "write catalogue.page() to docs/metrics.md"


async def test_every_metric_of_the_catalogue_appears_with_its_help() -> None:
    async with watched() as (desk, metrics, _):
        process = process_of(desk)
        process.time_streams()(1.0)
        process.certificate = SimpleNamespace(taken=2, refused=1)
        process.pools = SimpleNamespace(unknown=3)
        process.spans = SpanQueue(SimpleNamespace())
        process.refresh()
        standing = SimpleNamespace(synced=True, heard_at=desk.now - 1, counts=Counter(lists=1))
        metrics.sources = replace(
            metrics.sources,
            config=SimpleNamespace(taken=2, refused=1, current=False),
            objectives=SimpleNamespace(taken=2, refused=1, current=True),
            attempts=Attempts(),
            state=StateNumbers(
                store=SimpleNamespace(
                    connected=True, lag_s=0.5, happened={"holes": 1}, held={"writers": 2}
                ),
                scraper=SimpleNamespace(active=1, counts=Counter(pages=3)),
                models=SimpleNamespace(counts=Counter(pages=3)),
                sharing=SimpleNamespace(replicas=1, counts=Counter(said=3)),
                plain=SimpleNamespace(
                    elector=SimpleNamespace(name="a", held=True, counts=Counter(taken=1)),
                    held={"written": 2},
                    happened={"claims": 2},
                ),
                watch=SimpleNamespace(active={"no-events": 1}),
                cluster=lambda: SimpleNamespace(pods=2, standings=lambda: [("pods", standing)]),
            ),
        )
        route = await desk.route(ask())
        await desk.decide(b"broken")
        route.progress.response_headers(500, "10.9.9.9:1")
        metrics.failed("score")
        desk.pool.counts["record-gap"] += 1
        metrics.refresh(desk.now)
        text = process.text().decode() + metrics.text().decode()
    for family in catalogue.FAMILIES:
        short = family.name.removesuffix("_total")
        assert f"# HELP {short}" in text, family.name
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    known = {family.name for family in catalogue.FAMILIES}
    known |= {name.removesuffix("_total") + "_created" for name in known}
    assert {name for name in told if not name.endswith("_created")} <= known


async def test_retries_of_the_gateway_are_counted_and_those_that_may_come() -> None:
    async with watched() as (desk, metrics, explain):
        attempts = Attempts(limit=1)
        metrics.sources = replace(metrics.sources, attempts=attempts)
        within = {"x-slo-ttft-ms": "500", "x-envoy-expected-rq-timeout-ms": "9000"}
        for name in ("one", "one", "two"):
            headers = {protocol.REQUEST_ID: name, **within}
            await desk.route(ask(), headers=headers)
            attempts.begin(post(headers=headers), desk.now)
            desk.now += 0.1
        samples = page(desk, metrics)
        told = explain.last(request_id="one")
    assert samples["epp_gateway_retries_total"] == 1
    assert samples["epp_unanswered_requests"] == 1
    assert samples["epp_unanswered_forgotten_total"] == 1
    assert [entry["attempt"] for entry in told] == [2, 1]
    assert told[0]["within_ms"] == {"first_token": 400.0, "all": 9000.0}


async def test_decisions_refusals_and_answers_are_counted() -> None:
    async with watched() as (desk, metrics, _):
        route = await desk.route(ask())
        route.progress.response_headers(502, None)
        await desk.decide(b"broken")
        await desk.route(method="GET", path="/v1/models")
        samples = page(desk, metrics)
    base = 'fairness_id="default-flow",model_name="m",priority="0",target_model_name="m"'
    assert samples["llm_d_epp_request_total{" + base + "}"] == 1
    assert samples['llm_d_epp_request_error_total{error_code="502",' + base + "}"] == 1
    assert samples['epp_refusals_total{reason="bad-request"}'] == 1
    assert samples['epp_decisions_total{rung="predicted",why="ok"}'] == 1
    assert samples['epp_decisions_total{rung="load_only",why="unscored"}'] == 1
    assert samples["llm_d_epp_scheduler_e2e_duration_seconds_count"] == 2
    assert samples['llm_d_epp_ready_endpoints{name="pool"}'] == 2
    assert samples['epp_mode{mode="normal"}'] == 1
    assert samples['epp_mode{mode="random"}'] == 0


async def test_streams_are_counted_for_the_whole_process() -> None:
    async with watched() as (desk, _, _):
        process = process_of(desk)
        process.refresh()
        told = process.text().decode().splitlines()
    assert 'llm_d_epp_extproc_streams_total{code="OK"} 2.0' in told
    assert 'llm_d_epp_extproc_streams_total{code="UNAVAILABLE"} 1.0' in told
    assert 'llm_d_epp_info{version="1.2"} 1.0' in told
    assert not [line for line in told if line.startswith("epp_unknown_pool_total")]


async def test_what_is_not_known_is_absent_not_zero() -> None:
    async with watched() as (desk, metrics, _):
        desk.now += 100.0
        samples = page(desk, metrics)
    assert 'llm_d_epp_average_queue_size{name="pool"}' not in samples
    assert not any(name.startswith("llm_d_epp_per_endpoint_queue_size") for name in samples)
    assert not any(name.startswith("epp_endpoint_record_age_seconds") for name in samples)


async def test_series_of_a_removed_member_are_gone() -> None:
    async with watched() as (desk, metrics, _):
        for _ in range(4):
            await desk.route(ask())
        assert any('"pod-1:8000"' in name for name in page(desk, metrics))
        desk.pool.replace(desk.members[:1], desk.now)
        samples = page(desk, metrics)
    assert not any("pod-1" in name for name in samples)
    assert samples['epp_endpoint_decisions_total{endpoint="pod-0:8000"}'] > 0


async def test_predictions_are_compared_with_what_the_engines_found() -> None:
    async with watched() as (desk, metrics, _):
        route = await desk.route(ask())
        first = desk.pool.ready(desk.now)[0]
        metrics.done(
            Done(decision_id="d", outcome=Outcome.OK, status=200, cached_tokens=64), first, 128
        )
        metrics.done(Done(decision_id="d", outcome=Outcome.OK, status=200), first, 128)
        samples = page(desk, metrics)
        route.progress.finished()
    assert samples["epp_predicted_cached_tokens_total"] == 128
    assert samples["epp_actual_cached_tokens_total"] == 64


@pytest.mark.parametrize(
    ("predicted", "actual", "below", "within"),
    [
        (128, 64, 0.25, 0.5),
        (0, 64, -float("inf"), -0.9),
        (100, 99, -0.02, 0.02),
        (0, 0, -0.02, 0.02),
    ],
)
async def test_the_error_of_a_prediction_is_relative_to_the_larger_number(
    predicted: int, actual: int, below: float, within: float
) -> None:
    async with watched() as (desk, metrics, _):
        first = desk.pool.ready(desk.now)[0]
        done = Done(decision_id="d", outcome=Outcome.OK, status=200, cached_tokens=actual)
        metrics.done(done, first, predicted)
        samples = page(desk, metrics)
    name = "epp_cached_tokens_error_ratio_bucket"
    assert samples[f'{name}{{le="{within}"}}'] == 1
    assert samples.get(f'{name}{{le="{below}"}}', 0) == 0


def test_labels_that_clients_choose_are_bounded() -> None:
    bounded = Bounded(limit=3)
    assert [bounded.of(name) for name in "abcd"] == ["a", "b", "c", "other"]
    assert bounded.of("b") == "b"
    fresh = Bounded()
    for odd in ("m" * (MAX_LABEL_CHARS + 1), "a\nb", "\ud83d"):
        assert fresh.of(odd) == "other"
    assert fresh.of("m" * MAX_LABEL_CHARS) != "other"


async def test_attempts_are_told_by_endpoint_and_leave_with_it() -> None:
    async with watched() as (desk, metrics, _):
        for _ in range(4):
            await desk.route(ask())
        desk.pool.replace(desk.members[:1], desk.now)
        await desk.decide(ask(), subset=())
        samples = page(desk, metrics)
    attempts = {
        name: value for name, value in samples.items() if "scheduler_attempts_total" in name
    }
    assert [value for name, value in attempts.items() if 'status="failure"' in name] == [1]
    (won,) = [name for name in attempts if 'status="success"' in name]
    assert won == (
        'llm_d_epp_scheduler_attempts_total{endpoint_name="pod-0",namespace="",port="8000",'
        'status="success",target_model_name="m"}'
    )


async def test_attempts_at_very_many_models_are_told_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("epp.observe.metrics.MAX_ATTEMPTS", 3)
    async with watched(1) as (desk, metrics, _):
        for name in "abcda":
            await desk.route(ask(model=name))
        samples = page(desk, metrics)
    told = {
        name.partition('target_model_name="')[2].removesuffix('"}'): value
        for name, value in samples.items()
        if 'status="success"' in name
    }
    assert told == {"a": 2, "b": 1, "c": 1, "other": 1}


async def test_rewrites_and_headers_of_no_use_are_counted() -> None:
    async with watched() as (desk, metrics, _):
        await desk.route(ask(), headers={protocol.MODEL_REWRITE[0]: "inner"})
        await desk.route(ask(), headers={protocol.MODEL_REWRITE[0]: "a,b"})
        samples = page(desk, metrics)
    told = [name for name in samples if "model_rewrite_decisions_total" in name]
    assert told == [
        'llm_d_epp_model_rewrite_decisions_total{model_name="m",model_rewrite_name="header",'
        'target_model="inner"}'
    ]
    assert samples['epp_ignored_headers_total{header="model-rewrite"}'] == 1


def test_labels_lose_their_fairness_ids_before_their_models() -> None:
    def of(model: str, identity: str, priority: int = 0) -> tuple[str, ...]:
        return labels.of(
            Request(
                id="r",
                api="c",
                path="/",
                model=model,
                target_model=model,
                fairness_id=identity,
                priority=priority,
            )
        )

    labels = LabelSets(2)
    assert of("m", "a") == ("m", "m", "a", "0")
    assert of("m", "b") == ("m", "m", "b", "0")
    assert of("m", "c") == ("m", "m", "other", "0")
    assert of("n", "a") == ("n", "n", "other", "0")
    assert of("o", "a", priority=-1) == ("other", "other", "other", "-1")
    assert of("m", "a") == ("m", "m", "a", "0")


async def test_a_thousand_and_one_models_make_a_thousand_series() -> None:
    metrics = Metrics()
    async with open_desk(1) as desk:
        await desk.route(ask())
        decision = desk.witness.last
    for number in range(1001):
        request = Request(id="r", api="c", path="/", model=f"m{number}")
        metrics.decided(decision, request, "ok", 0.001)
    metrics.refresh(0.0)
    lines = [line for line in metrics.text().decode().splitlines() if "request_total{" in line]
    assert len(lines) == 1001
    assert any('model_name="other"' in line for line in lines)


async def test_the_last_decisions_say_why() -> None:
    async with watched() as (desk, _, explain):
        route = await desk.route(ask(list(range(640))))
        route.progress.response_headers(200, None)
        route.progress.body(1)
        await desk.route(ask(list(range(640))))
        newest, oldest = explain.last()
        found = explain.last(request_id=oldest["request_id"])
    assert found == [oldest]
    assert newest["reasons"] == [
        "prefix 640/640 tokens predicted trust 0.90",
        "queue 0",
        "tokens given",
    ]
    assert newest["at"] == 1_700_000_000.0
    assert newest["chosen"][0]["address"].startswith("10.0.0.")
    assert newest["table"][0]["match"] == {"tokens": 640, "source": "predicted", "trust": 0.9}
    assert set(newest["table"][0]["scores"]) == set(newest["weights"])
    assert len(newest["table"]) == 2


async def test_the_ring_of_decisions_is_bounded_and_its_text_is_cut() -> None:
    explain = Explain(wall=lambda: 0.0)
    async with open_desk(1) as desk:
        await desk.route(ask())
        decision = desk.witness.last
    for number in range(MAX_DECISIONS + 1):
        request = Request(id=str(number), api="c", path="/" * 999, model="m" * 999)
        explain.decided(replace(decision, request_id=str(number)), request, "ok", 0.001)
    assert len(explain) == MAX_DECISIONS
    last = explain.last()
    assert (len(last), last[0]["request_id"], last[-1]["request_id"]) == (1000, "1000", "1")
    assert (len(last[0]["path"]), len(last[0]["model"])) == (200, 200)
    odd = Request(id="odd", api="c", path="/\udcff", model="\ud83d")
    explain.decided(decision, odd, "ok", 0.001)
    assert msgspec.json.encode(explain.last(1))
    explain.refused(NoEndpoint("x"))
    explain.failed("score")
    assert len(explain) == MAX_DECISIONS
