"""What blocks on slower tiers are worth to a decision."""

from collections.abc import Mapping

import numpy as np
import pytest

from epp.framework import EndpointId, Incarnation, Match, PoolId, Source
from epp.state.loading import Loading
from epp.state.matching import Matches, matches
from epp.state.prefix import TierDepths

CPU_TOKENS_PER_S = 200_000.0
LIVES = (Incarnation(EndpointId(PoolId("pool"), "pod", 8000), 1),)


def one(
    gpu: int,
    *,
    predicted: int = 0,
    fresh: bool = True,
    trust: float = 0.5,
    speed: float = 8000.0,
    told: Mapping[str, float] | None = None,
    **loaded: int,
) -> Matches:
    """The match of one engine, in blocks of 64 tokens."""
    return matches(
        TierDepths(np.array([gpu]), {name: np.array([count]) for name, count in loaded.items()}),
        np.array([predicted]),
        fresh=lambda: np.array([fresh]),
        trust=np.array([trust]),
        prefill_tokens_per_s=np.array([speed]),
        block_tokens=64,
        prompt_tokens=6400,
        load_tokens_per_s=lambda tier: Loading(told or {}).speeds(tier, LIVES, 0.0),
    )


def test_a_token_that_is_loaded_counts_for_the_time_that_this_saves() -> None:
    found = one(10, CPU=20)
    computed_s, loaded_s = 20 * 64 / 8000.0, 20 * 64 / CPU_TOKENS_PER_S
    left = 30 * 64 - found.credited[0]
    assert found.tokens.tolist() == [30 * 64]
    assert left / 8000.0 == pytest.approx(loaded_s)
    assert computed_s > loaded_s
    match = found.of(0)
    assert (match.tokens, match.source, match.loaded) == (1920, Source.PRECISE, (("CPU", 1280),))
    assert match.credited_tokens == pytest.approx(found.credited[0])


def test_an_engine_that_computes_slowly_gains_more_from_the_same_tier() -> None:
    slow, fast = one(0, DISK=10, speed=1000.0), one(0, DISK=10, speed=15_000.0)
    assert slow.credited[0] > 2 * fast.credited[0] > 0.0


def test_a_tier_that_loads_more_slowly_than_the_engine_computes_counts_for_nothing() -> None:
    found = one(3, ELSEWHERE=10)
    assert found.credited.tolist() == [3 * 64]
    assert found.of(0).credited_tokens == pytest.approx(3 * 64)


def test_a_prediction_is_compared_with_what_a_slow_tier_is_worth() -> None:
    assert one(0, DISK=10, predicted=10, trust=0.9).of(0) == Match(640, Source.PREDICTED, 0.9)
    assert one(0, DISK=10, predicted=10, trust=0.3).of(0).source is Source.PRECISE


def test_of_a_writer_that_fell_silent_the_slow_tiers_are_worth_less_too() -> None:
    heard, silent = one(5, DISK=10), one(5, DISK=10, fresh=False, trust=0.5)
    assert silent.credited[0] == pytest.approx(0.5 * heard.credited[0])
    assert silent.precise.tolist() == [0.0]


def test_blocks_on_the_gpu_alone_are_worth_all_of_their_tokens() -> None:
    assert one(10).of(0) == Match(640, Source.PRECISE)


def test_the_operators_word_on_a_tier_counts_more_than_what_is_assumed() -> None:
    told = {"DISK": 16_000.0}
    assert one(0, DISK=10, told=told).credited.tolist() == [640 * (1 - 8000.0 / 16_000.0)]
    assert one(0, CPU=10, told=told).credited[0] == one(0, CPU=10).credited[0]
