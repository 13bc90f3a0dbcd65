"""Cost is finite, falls and rises with what it should, and knows no order of candidates."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import (
    NO_MATCH,
    Candidates,
    Endpoint,
    Load,
    Match,
    Request,
    Source,
    Speeds,
)
from epp.framework.cost import CostRules, cost
from epp.framework.registry import build_scorer
from tests.fakes.endpoints import endpoint

TOTAL = 8192
PRIOR = Speeds()
counts = st.integers(0, 2000)
usages = st.floats(0, 1)


@st.composite
def known_loads(draw: st.DrawFn) -> Load:
    usage, pending = draw(usages), draw(st.integers(0, 300))
    return Load(
        waiting=draw(counts),
        running=draw(counts),
        kv_usage=usage,
        active_blocks=usage * TOTAL,
        total_blocks=TOTAL,
        reserved_requests=pending + draw(st.integers(0, 300)),
        reserved_pending=pending,
        reserved_prefill_tokens=draw(st.integers(0, 10**7)),
        reserved_decode_blocks=draw(st.integers(0, 10**4)),
    )


@st.composite
def odd_loads(draw: st.DrawFn) -> Load:
    """Any part of the report may be missing, or say nonsense."""
    load = draw(known_loads())
    missing = draw(st.sets(st.sampled_from(["waiting", "running", "kv_usage", "active_blocks"])))
    total = draw(st.sampled_from([None, 0, 1, TOTAL, 10**7]))
    return replace(load, total_blocks=total, **dict.fromkeys(missing))


speeds = st.builds(
    Speeds,
    prefill_tokens_per_s=st.floats(1.0, 1e6),
    decode_s_per_token=st.floats(1e-4, 10.0),
    decode_s_per_block=st.floats(0.0, 1e-3),
    pull_tokens_per_s=st.floats(1.0, 1e7),
)
matches = st.builds(Match, st.integers(0, 10**6), st.sampled_from(list(Source)), st.floats(0, 1))
requests = st.builds(
    Request,
    id=st.just("r"),
    api=st.just("completions"),
    path=st.just("/"),
    prompt_tokens=st.integers(0, 10**6),
    output_tokens=st.integers(0, 10**6),
    scored=st.booleans(),
)
rules = st.builds(
    CostRules,
    answer_tokens=st.integers(1, 10**5),
    queued_tokens=st.integers(1, 10**5),
    usual_tokens=st.integers(1, 10**5),
    batch_growth=st.floats(0, 1),
    harm=st.floats(0, 10),
    coming=st.floats(0, 10),
    slowest=st.floats(1, 100),
)


def pod(number: int, load: Load, match: Match = NO_MATCH, speed: Speeds = PRIOR) -> Endpoint:
    return endpoint(number, load=load, match=match, speeds=speed)


odd_pools = st.lists(st.tuples(odd_loads(), matches, speeds), max_size=8).map(
    lambda each: [pod(number, *one) for number, one in enumerate(each)]
)
pools = st.lists(st.tuples(known_loads(), matches), min_size=1, max_size=6).map(
    lambda each: [pod(number, *one) for number, one in enumerate(each)]
)

ROUNDING = 1e-12
"""How far two sums of the same parts may lie apart: they are added in another order."""


def seconds(request: Request, pool: list[Endpoint], assumed: CostRules | None = None) -> Any:
    return cost(request, Candidates.of(pool), assumed or CostRules()).total


@given(request=requests, pool=odd_pools, assumed=rules, split=st.booleans())
def test_every_part_is_a_finite_number_of_seconds_from_0_on(
    request: Request, pool: list[Endpoint], assumed: CostRules, split: bool
) -> None:
    if split:
        request = replace(request, peer=pod(99, Load()))
    found = cost(request, Candidates.of(pool), assumed)
    for row in range(len(pool)):
        assert all(math.isfinite(part) and part >= 0.0 for part in found.parts(row).values())
    assert np.isfinite(found.total).all()
    assert (found.prompt <= found.total * (1.0 + ROUNDING)).all()


@given(request=requests, pool=odd_pools)
def test_scores_lie_between_0_and_1_and_order_endpoints_as_seconds_do(
    request: Request, pool: list[Endpoint]
) -> None:
    scores = np.asarray(build_scorer("cost-scorer", {}).score(request, Candidates.of(pool)))
    assert ((scores >= 0.0) & (scores <= 1.0)).all()
    order = np.argsort(seconds(request, pool), kind="stable")
    assert (np.diff(scores[order]) <= 0.0).all()


@given(request=requests, pool=odd_pools, data=st.data())
def test_the_order_of_candidates_changes_nothing(
    request: Request, pool: list[Endpoint], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(pool))))
    straight = seconds(request, pool)
    shuffled = seconds(request, [pool[row] for row in order])
    assert shuffled.tolist() == [straight[row] for row in order]


MORE: dict[str, Callable[[Load, int], Load]] = {
    "waiting": lambda load, by: replace(load, waiting=(load.waiting or 0) + by),
    "running": lambda load, by: replace(load, running=(load.running or 0) + by),
    "prefill": lambda load, by: replace(
        load, reserved_prefill_tokens=load.reserved_prefill_tokens + by
    ),
    "decode": lambda load, by: replace(
        load, reserved_decode_blocks=load.reserved_decode_blocks + by
    ),
    "blocks": lambda load, by: replace(load, active_blocks=(load.active_blocks or 0.0) + by),
    "ours": lambda load, by: replace(
        load,
        reserved_requests=load.reserved_requests + by,
        reserved_pending=load.reserved_pending,
    ),
}
"""Ways in which an endpoint may have more to do."""


@given(
    request=requests,
    pool=pools,
    way=st.sampled_from(sorted(MORE)),
    by=st.integers(1, 1000),
    data=st.data(),
)
def test_more_to_do_never_costs_less_and_changes_nothing_elsewhere(
    request: Request, pool: list[Endpoint], way: str, by: int, data: st.DataObject
) -> None:
    """The second half is fault B12: gates are per candidate."""
    row = data.draw(st.integers(0, len(pool) - 1))
    before = seconds(request, pool)
    loaded = [*pool]
    loaded[row] = replace(pool[row], load=MORE[way](pool[row].load, by))
    after = seconds(request, loaded)
    assert after[row] >= before[row] * (1 - 1e-12)
    assert np.delete(after, row).tolist() == np.delete(before, row).tolist()


@given(request=requests, load=known_loads(), match=matches, more=st.integers(1, 10**5))
def test_more_in_the_cache_never_costs_more(
    request: Request, load: Load, match: Match, more: int
) -> None:
    longer = replace(match, tokens=match.tokens + more)
    found = seconds(request, [pod(0, load, match), pod(1, load, longer)])
    assert found[1] <= found[0]


@given(request=requests, loads=st.lists(known_loads(), min_size=1, max_size=5), match=matches)
def test_an_unknown_engine_is_never_cheaper_than_a_known_one(
    request: Request, loads: list[Load], match: Match
) -> None:
    """With the same of ours on it."""
    ours: dict[str, Any] = {
        "reserved_requests": 3,
        "reserved_pending": 1,
        "reserved_prefill_tokens": 500,
        "reserved_decode_blocks": 40,
    }
    known = [pod(n, replace(load, **ours), match) for n, load in enumerate(loads)]
    found = seconds(request, [*known, pod(9, Load(**ours), match)])
    assert found[-1] >= found[:-1].max() * (1 - 1e-12)
