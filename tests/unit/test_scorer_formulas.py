"""Each scorer's formula in numbers, and the ways in which its parameters are refused."""

from typing import Any

import pytest

from epp.errors import PluginError
from epp.framework import (
    Candidates,
    Endpoint,
    Load,
    Lora,
    Match,
    Request,
    Source,
    registry,
)
from epp.framework.registry import build_scorer
from tests.fakes.endpoints import endpoint


def _pool(*loads: Load, matches: tuple[Match, ...] = ()) -> list[Endpoint]:
    return [
        endpoint(number, load=load, match=matches[number] if matches else Match())
        for number, load in enumerate(loads)
    ]


def _request(tokens: int = 640) -> Request:
    return Request(id="r", api="c", path="/", prompt_tokens=tokens, keys=tuple(range(tokens // 64)))


def _scores(kind: str, pool: list[Endpoint], tokens: int = 640, **parameters: Any) -> list[float]:
    scorer = build_scorer(kind, parameters)
    return [float(score) for score in scorer.score(_request(tokens), Candidates.of(pool))]


def _waiting(*depths: int | None) -> list[Endpoint]:
    return _pool(*(Load(waiting=depth) for depth in depths))


def _running(*counts: int | None) -> list[Endpoint]:
    return _pool(*(Load(running=count) for count in counts))


@pytest.mark.parametrize(
    ("depths", "parameters", "expected"),
    [
        ((10, 5, 0), {}, [0.0, 0.5, 1.0]),
        ((12, 7, 2), {}, [0.0, 0.5, 1.0]),
        ((7, 7), {}, [1.0, 1.0]),
        ((3,), {}, [1.0]),
        ((1, 0), {}, [0.0, 1.0]),
        ((1, 0), {"minRange": 8}, [0.875, 1.0]),
        ((10, 5, 0), {"minRange": 8}, [0.0, 0.5, 1.0]),
        ((200, 4, 0), {"minRange": 8, "maxRange": 8}, [0.0, 0.5, 1.0]),
        ((None, 100, 0), {}, [0.0, 0.0, 1.0]),
        ((None, None), {}, [1.0, 1.0]),
    ],
)
def test_queues_are_spread_over_the_range(
    depths: tuple[int | None, ...], parameters: dict[str, Any], expected: list[float]
) -> None:
    assert _scores("queue-scorer", _waiting(*depths), **parameters) == expected


def test_running_requests_count_in_part_and_less_where_everybody_has_many() -> None:
    idle = _pool(Load(waiting=0, running=8), Load(waiting=0, running=0))
    assert _scores("queue-scorer", idle) == [1.0, 1.0]
    weighed = {"minRange": 8, "runningWeight": 0.5}
    assert _scores("queue-scorer", idle, **weighed) == [0.5, 1.0]
    busy = _pool(Load(waiting=0, running=88), Load(waiting=0, running=80))
    assert _scores("queue-scorer", busy, **weighed) == [0.95, 1.0]
    ours = _pool(Load(waiting=0, reserved_requests=9, reserved_pending=1), Load(waiting=0))
    assert _scores("queue-scorer", ours, **weighed) == [0.375, 1.0]
    silent = _pool(Load(waiting=0), Load(waiting=0, running=4))
    assert _scores("queue-scorer", silent, **weighed) == [1.0, 0.75]


def test_our_own_pending_requests_count_where_the_report_lags() -> None:
    pool = _pool(Load(waiting=0, reserved_pending=8), Load(waiting=0))
    assert _scores("queue-scorer", pool, minRange=16) == [0.5, 1.0]
    assert _scores("load-aware-scorer", pool, threshold=16) == [0.25, 0.5]


def test_where_no_engine_is_known_our_own_count_decides_alone() -> None:
    pool = _pool(Load(reserved_pending=4, reserved_requests=6), Load())
    assert _scores("queue-scorer", pool, minRange=8) == [0.5, 1.0]
    assert _scores("load-aware-scorer", pool, threshold=8) == [0.25, 0.5]
    assert _scores("running-requests-size-scorer", pool) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((10, 5, 0), [0.0, 0.5, 1.0]),
        ((12, 7, 2), [0.0, 0.5, 1.0]),
        ((4, 4), [1.0, 1.0]),
        ((1, 0), [0.0, 1.0]),
        ((None, 8, 0), [0.0, 0.0, 1.0]),
    ],
)
def test_running_requests_are_spread_over_the_range(
    counts: tuple[int | None, ...], expected: list[float]
) -> None:
    assert _scores("running-requests-size-scorer", _running(*counts)) == expected


@pytest.mark.parametrize(
    ("depth", "threshold", "expected"),
    [
        (0, 128, 0.5),
        (64, 128, 0.25),
        (128, 128, 0.0),
        (500, 128, 0.0),
        (1, 1, 0.0),
        (1, 2, 0.25),
        (5, 10, 0.25),
    ],
)
def test_a_queue_is_rated_on_a_scale_of_its_own(
    depth: int, threshold: int, expected: float
) -> None:
    found = _scores("load-aware-scorer", _waiting(depth, 0, None), threshold=threshold)
    assert found == [pytest.approx(expected), 0.5, 0.0]


@pytest.mark.parametrize(
    ("counts", "parameters", "expected"),
    [
        ((3, 0, 6), {}, [0.5, 1.0, 0.0]),
        ((0, 0), {}, [1.0, 1.0]),
        ((1, 0), {}, [0.0, 1.0]),
        ((5, 5), {}, [0.0, 0.0]),
        ((1, 2, 4), {"idleThreshold": 1}, [1.0, 0.5, 0.0]),
        ((3, 0, 6), {"maxBusyScore": 0.5}, [0.25, 1.0, 0.0]),
        ((3, 0, 6), {"maxBusyScore": 0}, [0.0, 1.0, 0.0]),
        ((2, 1), {"idleThreshold": 2}, [1.0, 1.0]),
    ],
)
def test_an_idle_endpoint_wins_and_the_busiest_gets_nothing(
    counts: tuple[int, ...], parameters: dict[str, Any], expected: list[float]
) -> None:
    pool = _pool(*(Load(reserved_requests=count, waiting=50) for count in counts))
    assert _scores("active-request-scorer", pool, **parameters) == expected


def test_a_prefix_counts_by_its_share_of_the_prompt() -> None:
    matches = (Match(320, Source.PRECISE), Match(640, Source.PREDICTED, 0.5), Match())
    pool = _pool(Load(), Load(), Load(), matches=matches)
    assert _scores("prefix-cache-scorer", pool) == [0.5, 0.5, 0.0]


def test_a_longer_match_counts_for_more_where_length_has_weight() -> None:
    long, full = Match(4096, Source.PRECISE), Match(16384, Source.PRECISE)
    pool = _pool(Load(), Load(), matches=(long, full))
    scores = _scores("prefix-cache-scorer", pool, tokens=8192, matchLengthWeight=0.5)
    assert scores == [0.5 * 0.25 + 0.5 * 0.5, 1.0]
    scores = _scores(
        "prefix-cache-scorer", pool, 16384, matchLengthWeight=0.25, matchLengthScaleTokens=4096
    )
    assert scores == [0.25 + 0.75 * 0.25, 1.0]


def test_the_older_name_of_the_precise_scorer_scores_like_the_newer() -> None:
    matches = (Match(320, Source.PRECISE), Match())
    pool = _pool(Load(), Load(), matches=matches)
    older = _scores(
        "precise-prefix-cache-scorer",
        pool,
        tokenProcessorConfig={"blockSize": 64},
        kvEventsConfig={"topicFilter": "kv@"},
        speculativeTTL="5s",
    )
    assert older == _scores("prefix-cache-scorer", pool) == [0.5, 0.0]


def test_the_smallest_scales_are_one_token() -> None:
    pool = _pool(Load(), matches=(Match(64, Source.PRECISE),))
    smallest = {"matchLengthWeight": 0.5, "matchLengthScaleTokens": 1}
    assert _scores("prefix-cache-scorer", pool, tokens=128, **smallest) == [0.75]
    assert _scores("prefix-cache-scorer", pool, 128, matchLengthScaleTokens=0) == [0.5]
    assert _scores("token-load-scorer", pool, tokens=64, queueThresholdTokens=1) == [1.0]
    with pytest.raises(PluginError, match="above 0"):
        build_scorer("token-load-scorer", {"queueThresholdTokens": 0})


def test_a_prefix_that_nobody_holds_is_neutral_not_perfect() -> None:
    assert _scores("prefix-cache-scorer", _pool(Load(), Load())) == [0.0, 0.0]
    assert _scores("prefix-cache-scorer", _pool(Load()), tokens=10) == [0.0]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (0.0, 1.0),
        (0.25, 0.75),
        (1.0, 0.0),
        (None, 0.0),
        (float("nan"), 0.0),
        (-0.5, 0.0),
        (2.0, 0.0),
    ],
)
def test_kv_use_counts_down_and_unknown_is_worst(usage: float | None, expected: float) -> None:
    assert _scores("kv-cache-utilization-scorer", _pool(Load(kv_usage=usage))) == [expected]


@pytest.mark.parametrize(
    ("active", "reserved", "total", "expected"),
    [
        (20.0, 30, 100, 0.5),
        (90.0, 30, 100, 0.0),
        (0.0, 0, 100, 1.0),
        (0.5, 0, 1, 0.5),
        (0.0, 0, 0, 0.0),
        (1.0, 0, None, 0.0),
        (None, 0, 100, 0.0),
        (-1.0, 0, 100, 0.0),
        (float("nan"), 0, 100, 0.0),
        (float("inf"), 0, 100, 0.0),
    ],
)
def test_decode_load_adds_what_no_report_shows_yet(
    active: float | None, reserved: int, total: int | None, expected: float
) -> None:
    load = Load(active_blocks=active, total_blocks=total, reserved_decode_blocks=reserved)
    assert _scores("decode-load-scorer", _pool(load)) == [expected]


def test_token_load_counts_pending_tokens_and_this_request() -> None:
    pool = _pool(
        Load(reserved_prefill_tokens=360),
        Load(reserved_prefill_tokens=0),
        matches=(Match(), Match(640, Source.PRECISE)),
    )
    scores = _scores("token-load-scorer", pool, queueThresholdTokens=2000)
    assert scores == [0.5, 1.0]


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("queue-scorer", {"minRange": 0}),
        ("queue-scorer", {"minRange": float("nan")}),
        ("queue-scorer", {"minRange": 8, "maxRange": 4}),
        ("queue-scorer", {"maxRange": float("inf")}),
        ("queue-scorer", {"runningWeight": 2}),
        ("prefix-cache-scorer", {"matchLengthWeight": 1.5}),
        ("prefix-cache-scorer", {"matchLengthWeight": float("nan")}),
        ("prefix-cache-scorer", {"matchLengthWeight": 0.1, "matchLengthScaleTokens": 0}),
        ("prefix-cache-scorer", {"matchLengthScaleTokens": "long"}),
        ("token-load-scorer", {"queueThresholdTokens": -1}),
        ("load-aware-scorer", {"threshold": 0}),
        ("active-request-scorer", {"idleThreshold": -1}),
        ("active-request-scorer", {"maxBusyScore": 1.01}),
        ("active-request-scorer", {"maxBusyScore": float("nan")}),
        ("no-hit-lru-scorer", {"lruSize": 0}),
        ("context-length-aware", {"label": ""}),
        ("header-label-affinity-scorer", {"headerName": "x-zone"}),
        ("header-label-affinity-scorer", {"headerName": " ", "labelKey": "zone"}),
        ("header-label-affinity-scorer", {"headerName": "x-zone", "labelKey": ""}),
        ("endpoint-attribute-scorer", {"attributeKey": "WaitingQueueSize"}),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(kind: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(PluginError, match=kind):
        build_scorer(kind, parameters)


def test_both_spellings_of_a_parameter_are_read_and_a_clash_is_refused() -> None:
    assert build_scorer("queue-scorer", {"min_range": 3}) == build_scorer(
        "queue-scorer", {"minRange": 3}
    )
    with pytest.raises(PluginError, match="given twice"):
        build_scorer("queue-scorer", {"minRange": 3, "min_range": 3})


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(PluginError, match="known: minRange, maxRange"):
        build_scorer("queue-scorer", {"limit": 3})
    with pytest.raises(PluginError, match="did you mean 'queue-scorer'"):
        build_scorer("queu-scorer", {})


def _adapters(running: str = "", waiting: str = "", most: int = 2, base: str = "") -> Load:
    names = frozenset(running.split()), frozenset(waiting.split())
    return Load(lora=Lora(running=names[0], waiting=names[1], most=most, base=base))


def _affinity(model: str, *loads: Load, target: str = "") -> list[float]:
    request = Request(id="r", api="c", path="/", model=model, target_model=target)
    scorer = build_scorer("lora-affinity-scorer", {})
    return list(scorer.score(request, Candidates.of(_pool(*loads))))


def test_an_adapter_runs_has_room_waits_or_has_no_place() -> None:
    runs, room = _adapters("a x"), _adapters("x")
    waits, full = _adapters("x", "a"), _adapters("x", "y")
    assert _affinity("a", runs, room, waits, full) == [1.0, 0.8, 0.6, 0.0]
    assert _affinity("alias", runs, room, target="a") == [1.0, 0.8]


def test_a_base_model_and_a_pool_without_adapters_feel_nothing() -> None:
    assert _affinity("m", _adapters("a b", base="m"), _adapters(base="m"), Load()) == [1.0] * 3
    assert _affinity("a", Load(), Load()) == [1.0, 1.0]


def test_whoever_says_nothing_of_adapters_is_as_good_as_the_worst_who_does() -> None:
    assert _affinity("a", _adapters("a"), Load()) == [1.0, 0.6]
    assert _affinity("a", _adapters("a"), _adapters("x y"), Load()) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "reads", "stability"),
    [
        ("active-request-scorer", "inflight-load", "stable"),
        ("context-length-aware", "tokens", "stable"),
        ("decode-load-scorer", "engine-metrics inflight-load", "stable"),
        ("endpoint-attribute-scorer", "engine-metrics inflight-load", "alpha"),
        ("header-label-affinity-scorer", "", "alpha"),
        ("kv-cache-utilization-scorer", "engine-metrics", "stable"),
        ("load-aware-scorer", "engine-metrics inflight-load", "stable"),
        ("lora-affinity-scorer", "engine-metrics", "stable"),
        ("mm-embeddings-cache-scorer", "encoder-cache", "stable"),
        ("no-hit-lru-scorer", "prefix-match", "stable"),
        ("precise-prefix-cache-scorer", "prefix-match", "stable"),
        ("prefix-cache-scorer", "prefix-match", "stable"),
        ("queue-scorer", "engine-metrics inflight-load", "stable"),
        ("running-requests-size-scorer", "engine-metrics inflight-load", "stable"),
        ("session-affinity-scorer", "session-id", "alpha"),
        ("token-load-scorer", "inflight-load", "stable"),
        ("topology-affinity-scorer", "", "alpha"),
    ],
)
def test_each_scorer_says_what_it_reads_and_how_stable_it_is(
    kind: str, reads: str, stability: str
) -> None:
    found = registry.find(kind)
    assert found is not None
    assert (found.consumes, found.stability) == (frozenset(reads.split()), stability)


def test_the_defaults_are_those_of_the_reference() -> None:
    found = {
        name: {one.yaml_name: one.default for one in kind.parameters if one.default != ""}
        for name, kind in registry.types(registry.Kind.SCORER).items()
    }
    assert found["queue-scorer"] == {"minRange": 1.0, "maxRange": None, "runningWeight": 0.0}
    assert found["load-aware-scorer"] == {"threshold": 128}
    assert found["active-request-scorer"] == {"idleThreshold": 0, "maxBusyScore": 1.0}
    assert found["token-load-scorer"] == {"queueThresholdTokens": 4_194_304}
    assert found["prefix-cache-scorer"] == {
        "matchLengthWeight": 0.0,
        "matchLengthScaleTokens": 8192,
    }
    assert found["no-hit-lru-scorer"] == {
        "lruSize": 1024,
        "prefixPluginType": "prefix-cache-scorer",
        "prefixPluginName": "prefix-cache-scorer",
    }
    assert found["precise-prefix-cache-scorer"] == {
        "tokenProcessorConfig": None,
        "indexerConfig": None,
        "kvEventsConfig": None,
        "speculativeIndexing": False,
        "speculativeTTL": 2.0,
    }
    assert found["context-length-aware"] == {
        "label": "llm-d.ai/context-length-range",
        "enableFiltering": False,
    }


@pytest.mark.parametrize(
    ("kind", "idle"),
    [
        ("active-request-scorer", {"inFlightLoadProducerName", "requestTimeout"}),
        ("token-load-scorer", {"inFlightLoadProducerName"}),
        ("prefix-cache-scorer", {"prefixMatchInfoProducerName"}),
        ("endpoint-attribute-scorer", {"producer"}),
        ("mm-embeddings-cache-scorer", {"producerName"}),
        (
            "no-hit-lru-scorer",
            {"prefixPluginType", "prefixPluginName", "prefixMatchInfoProducerName"},
        ),
        (
            "precise-prefix-cache-scorer",
            {
                "tokenProcessorConfig",
                "indexerConfig",
                "kvEventsConfig",
                "speculativeIndexing",
                "speculativeTTL",
            },
        ),
        ("topology-affinity-scorer", {"topologyProducerName"}),
    ],
)
def test_parameters_that_change_nothing_are_known_as_such(kind: str, idle: set[str]) -> None:
    found = registry.find(kind)
    assert found is not None
    assert set(found.without_effect) == idle
