"""Each scorer's formula in numbers, and the ways in which its parameters are refused."""

from typing import Any

import pytest

from epp.errors import PluginError
from epp.framework import (
    Endpoint,
    EndpointId,
    Incarnation,
    Load,
    Lora,
    Match,
    PoolId,
    Request,
    Source,
)
from epp.framework.registry import build_scorer


def _pool(*loads: Load, matches: tuple[Match, ...] = ()) -> list[Endpoint]:
    ids = [EndpointId(PoolId("p"), f"pod-{number}", 8000) for number in range(len(loads))]
    return [
        Endpoint(
            id=ident,
            address="10.0.0.1:8000",
            incarnation=Incarnation(ident, 1),
            load=load,
            match=matches[number] if matches else Match(),
        )
        for number, (ident, load) in enumerate(zip(ids, loads, strict=True))
    ]


def _request(tokens: int = 640) -> Request:
    return Request(id="r", api="c", path="/", prompt_tokens=tokens, keys=tuple(range(tokens // 64)))


def _scores(kind: str, pool: list[Endpoint], tokens: int = 640, **parameters: Any) -> list[float]:
    return list(build_scorer(kind, parameters).score(_request(tokens), pool))


def _waiting(*depths: int | None) -> list[Endpoint]:
    return _pool(*(Load(waiting=depth) for depth in depths))


def test_queue_spreads_ten_five_and_none_over_the_whole_range() -> None:
    assert _scores("queue-scorer", _waiting(10, 5, 0)) == [0.0, 0.5, 1.0]


def test_equal_queues_all_score_one() -> None:
    assert _scores("queue-scorer", _waiting(7, 7)) == [1.0, 1.0]


def test_a_difference_of_one_request_is_a_weak_signal() -> None:
    assert _scores("queue-scorer", _waiting(1, 0)) == [0.875, 1.0]
    assert _scores("queue-scorer", _waiting(1, 0), minRange=1) == [0.0, 1.0]


def test_an_overloaded_endpoint_does_not_flatten_the_others() -> None:
    assert _scores("queue-scorer", _waiting(200, 4, 0), maxRange=8) == [0.0, 0.5, 1.0]


def test_running_requests_count_in_part_and_less_where_everybody_has_many() -> None:
    idle = _pool(Load(waiting=0, running=8), Load(waiting=0, running=0))
    assert _scores("queue-scorer", idle) == [1.0, 1.0]
    assert _scores("queue-scorer", idle, runningWeight=0.5) == [0.5, 1.0]
    busy = _pool(Load(waiting=0, running=88), Load(waiting=0, running=80))
    assert _scores("queue-scorer", busy, runningWeight=0.5) == [0.95, 1.0]
    ours = _pool(Load(waiting=0, reserved_requests=9, reserved_pending=1), Load(waiting=0))
    assert _scores("queue-scorer", ours, runningWeight=0.5) == [0.375, 1.0]


def test_an_unknown_queue_scores_zero_beside_a_known_one() -> None:
    assert _scores("queue-scorer", _waiting(None, 100, 0)) == [0.0, 0.0, 1.0]


def test_where_no_engine_is_known_our_own_count_decides_alone() -> None:
    pool = _pool(Load(reserved_pending=4), Load())
    assert _scores("queue-scorer", pool) == [0.5, 1.0]


def test_our_own_pending_requests_count_where_the_report_lags() -> None:
    pool = _pool(Load(waiting=0, reserved_pending=8), Load(waiting=0))
    assert _scores("queue-scorer", pool) == [0.0, 1.0]


def test_a_prefix_counts_by_its_share_of_the_prompt() -> None:
    matches = (Match(320, Source.PRECISE), Match(640, Source.PREDICTED, 0.5), Match())
    pool = _pool(Load(), Load(), Load(), matches=matches)
    assert _scores("prefix-cache-scorer", pool) == [0.5, 0.5, 0.0]


def test_a_longer_match_counts_for_more_where_length_has_weight() -> None:
    pool = _pool(Load(), matches=(Match(4096, Source.PRECISE),))
    scores = _scores("prefix-cache-scorer", pool, tokens=8192, matchLengthWeight=0.5)
    assert scores == [0.5 * 0.25 + 0.5 * 0.5]


def test_a_prefix_that_nobody_holds_is_neutral_not_perfect() -> None:
    assert _scores("prefix-cache-scorer", _pool(Load(), Load())) == [0.0, 0.0]
    assert _scores("prefix-cache-scorer", _pool(Load()), tokens=10) == [0.0]


def test_kv_use_counts_down_and_unknown_is_worst() -> None:
    pool = _pool(Load(kv_usage=0.25), Load(), Load(kv_usage=float("nan")))
    assert _scores("kv-cache-utilization-scorer", pool) == [0.75, 0.0, 0.0]


def test_decode_load_adds_what_no_report_shows_yet() -> None:
    pool = _pool(
        Load(active_blocks=20.0, total_blocks=100, reserved_decode_blocks=30),
        Load(active_blocks=90.0, total_blocks=100, reserved_decode_blocks=30),
        Load(active_blocks=1.0),
        Load(total_blocks=100),
    )
    assert _scores("decode-load-scorer", pool) == [0.5, 0.0, 0.0, 0.0]


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
        ("prefix-cache-scorer", {"matchLengthScaleTokens": 0}),
        ("prefix-cache-scorer", {"matchLengthScaleTokens": "long"}),
        ("token-load-scorer", {"queueThresholdTokens": -1}),
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
    return list(build_scorer("lora-affinity-scorer", {}).score(request, _pool(*loads)))


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
