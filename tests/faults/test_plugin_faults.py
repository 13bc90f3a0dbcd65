"""Faults that plugins of ours, which are not scorers, must not have."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from epp.framework import (
    Candidates,
    Load,
    Match,
    Request,
    registry,
)
from tests.fakes.endpoints import endpoint

ROUNDS = 500


def _plugin(kind: str, **parameters: Any) -> Any:
    found = registry.find(kind)
    assert found is not None
    return found.build(parameters)


def _request(**given: Any) -> Request:
    return Request(id="r", api="completions", path="/v1/completions", **given)


def test_B17_each_equal_candidate_of_changing_lists_is_chosen_alike() -> None:
    """Protected by the draw among equals in `epp/plugins/pickers/max_score.py`; red when the first
    of them is taken."""
    picker, chance = _plugin("max-score-picker"), Random(1)
    chosen: Counter[str] = Counter()
    for _ in range(ROUNDS):
        for names in ("abc", "de"):
            chosen[names[picker.pick([1.0] * len(names), chance)[0]]] += 1
    for names in ("abc", "de"):
        share = 1 / len(names)
        sigma = (ROUNDS * share * (1 - share)) ** 0.5
        for name in names:
            assert abs(chosen[name] - ROUNDS * share) < 3.5 * sigma, chosen


def test_B11_a_hot_prefix_keeps_nobody_on_a_pod_that_is_far_behind() -> None:
    """Protected by `_delays` in `epp/plugins/filters/prefix_cache_affinity.py`; red when the warm
    ones stay whatever they have to do."""
    gate = _plugin("prefix-cache-affinity-filter", peakPrefillThroughput=1000, maxTTFTPenaltyMs=500)
    prompt = _request(keys=tuple(range(10)), prompt_tokens=640)
    warm = [
        endpoint("warm", match=Match(640), load=Load(reserved_prefill_tokens=n)) for n in (0, 600)
    ]
    cold = endpoint("cold")
    assert list(gate.keep(prompt, Candidates.of([warm[0], cold]))) == [True, False]
    assert list(gate.keep(prompt, Candidates.of([warm[1], cold]))) == [True, True]


@pytest.mark.parametrize(
    ("of", "cached", "verdict"),
    [
        ({"prompt_tokens": 400}, 0, "below-threshold"),
        ({"prompt_tokens": 8000}, 7600, "cached"),
        ({"prompt_tokens": 8000}, 0, "split"),
        ({"prompt_tokens": 8000, "exact": False}, 0, "tokens-estimated"),
        ({"prompt_tokens": 8000, "scored": False}, 0, "load-only"),
    ],
)
def test_B24_a_split_is_decided_on_uncached_tokens_that_are_known(
    of: dict[str, Any], cached: int, verdict: str
) -> None:
    """Protected by the comparison with the uncached tokens and by the refusal of guesses in
    `epp/plugins/deciders/prefix_based_pd.py`; red when either is left out."""
    decider = _plugin("prefix-based-pd-decider", nonCachedTokens=512)
    asked = _request(**({"exact": True} | of))
    assert decider.decide(asked, endpoint("decode", match=Match(cached))) == verdict
