"""How cost spreads work over simulated engines, in virtual time."""

from dataclasses import replace
from random import Random

import pytest

from epp.sim.settings import CoreSettings
from epp.state.pace import ENOUGH
from tests.fakes import workloads
from tests.fakes.virtual_fleet import GPU, Fleet, Weights

COST: Weights = (("cost-scorer", 1, {}),)
SLOW = {**GPU, "prefill_tokens_per_s": 2000.0, "decode_step_s": 0.05}


def new(*engines: dict[str, float], weights: Weights = COST, **how: float) -> Fleet:
    settings = [CoreSettings(**one) for one in engines or (GPU,) * 4]  # type: ignore[arg-type]
    return Fleet(settings, weights, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "warm", "most"),
    [
        *((tokens, False, 14) for tokens in (16, 64, 1000, 4000)),
        *((tokens, True, 14) for tokens in (16, 64, 1000)),
        (4000, True, 20),
    ],
)
def test_a_burst_of_equal_prompts_leaves_the_engine_that_holds_them(
    tokens: int, warm: bool, most: int
) -> None:
    """The longer it would take to compute the prompt elsewhere, the later."""
    for seed in range(3):
        fleet = new(seed=seed)
        asks = workloads.burst(Random(seed), 40, tokens, at=9.0, equal=True)
        if warm:
            fleet.run([replace(asks[0], at=0.0)])
        served = len(fleet.served)
        fleet.run(asks)
        counts = [0] * 4
        for one in fleet.served[served:]:
            counts[one.engine] += 1
        assert max(counts) <= most, counts


def test_a_hot_prefix_warms_the_engines_that_are_cold_before_one_is_full() -> None:
    """At 6 a second one engine alone could serve all of them."""
    for seed in range(4):
        fleet = new(seed=seed)
        fleet.run(workloads.hot(Random(seed), 6, 150))
        assert sorted(fleet.shares())[-2] >= 30, fleet.shares()


def test_few_requests_stay_where_their_prefix_is() -> None:
    fleet = new(seed=1)
    fleet.run(workloads.hot(Random(1), 0.3, 40))
    assert max(fleet.shares()) >= 36, fleet.shares()


def test_a_slow_engine_gets_less_and_costs_nobody_much() -> None:
    even = new(seed=2)
    even.run(workloads.strangers(Random(2), 8, 250))
    uneven = new(GPU, GPU, GPU, SLOW, seed=2)
    uneven.run(workloads.strangers(Random(2), 8, 250))
    assert uneven.shares()[3] < 0.6 * min(uneven.shares()[:3])
    means = [sum(one.ttft_s for one in f.served) / 250 for f in (even, uneven)]
    assert means[1] < 2 * means[0]


def test_an_engine_that_was_measured_wrong_is_tried_again() -> None:
    """Red without `slowest`: it starves."""
    fleet = new(seed=1)
    for number, seconds in enumerate((4.0, 0.025, 0.025, 0.025)):
        life = fleet.state.endpoints.incarnation(fleet.ids[number])
        assert life is not None
        for name in (f"{number}-{again}" for again in range(ENOUGH)):
            fleet.load.reserve(
                life, name, prefill_tokens=200, decode_tokens=0, has_writer=False, now=-200.0
            )
            fleet.load.first_token(name, seconds - 200.0)
            fleet.load.finish(name, seconds - 200.0)
    found = fleet.state.ready(0.0)
    speeds = found.column("prefill_tokens_per_s").tolist()
    assert speeds == pytest.approx([50.0, 8000.0, 8000.0, 8000.0])
    fleet.run(workloads.strangers(Random(2), 20, 300))
    assert fleet.shares()[0] >= 40, fleet.shares()


def test_cost_is_at_least_as_good_as_weights_where_prefixes_are_shared() -> None:
    """`python -m tests.bench.policies` plays more."""
    weighted: Weights = (
        ("prefix-cache-scorer", 2, {"matchLengthWeight": 0.5, "matchLengthScaleTokens": 4096}),
        ("queue-scorer", 3, {"minRange": 8, "maxRange": 8, "runningWeight": 0.6}),
        ("token-load-scorer", 1, {"queueThresholdTokens": 65_536}),
        ("decode-load-scorer", 1, {}),
        ("kv-cache-utilization-scorer", 1, {}),
    )
    first: list[float] = []
    cached: list[float] = []
    for weights in (COST, weighted):
        fleet = new(weights=weights, seed=3)
        fleet.run(workloads.shared(Random(3), 16, 250))
        first.append(sum(one.ttft_s for one in fleet.served))
        cached.append(sum(one.cached for one in fleet.served))
    assert first[0] <= 1.05 * first[1]
    assert cached[0] >= 0.97 * cached[1]
