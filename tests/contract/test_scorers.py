"""Every installed scorer, over loads and matches of any size: Hypothesis looks where samples of
`epp.framework.contract` do not."""

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.framework import (
    Candidates,
    Endpoint,
    Load,
    Lora,
    Match,
    Request,
    Source,
)
from epp.framework.registry import Kind
from tests.contract.installed import build, installed
from tests.fakes.endpoints import endpoint

SCORERS = list(installed(Kind.SCORER))
ANY_FIXTURE = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


adapters = st.frozensets(st.sampled_from(["m", "a", "b"]))
loads = st.builds(
    Load,
    lora=st.none()
    | st.builds(
        Lora,
        running=adapters,
        waiting=adapters,
        most=st.integers(0, 4),
        base=st.sampled_from(["", "m"]),
    ),
    waiting=st.none() | st.integers(0, 10_000),
    running=st.none() | st.integers(0, 10_000),
    kv_usage=st.none() | st.floats(0, 1),
    active_blocks=st.none() | st.floats(0, 1e9),
    total_blocks=st.none() | st.integers(0, 1_000_000),
    reserved_requests=st.integers(0, 1000),
    reserved_pending=st.integers(0, 1000),
    reserved_prefill_tokens=st.integers(0, 10**9),
    reserved_decode_blocks=st.integers(0, 10**6),
)
matches = st.builds(Match, st.integers(0, 10**6), st.sampled_from(list(Source)), st.floats(0, 1))
labels = st.dictionaries(
    st.sampled_from(["llm-d.ai/context-length-range", "topology.kubernetes.io/zone"]),
    st.text(max_size=8) | st.sampled_from(["0-64", "64-4096", "a"]),
)
pools = st.lists(st.tuples(loads, matches, labels), max_size=12).map(
    lambda parts: [
        endpoint(number, load=load, match=match, labels=labels)
        for number, (load, match, labels) in enumerate(parts)
    ]
)
requests = st.builds(
    Request,
    id=st.just("r"),
    api=st.just("completions"),
    path=st.just("/v1/completions"),
    model=st.sampled_from(["", "m", "a", "b"]),
    prompt_tokens=st.integers(0, 10**6),
    keys=st.lists(st.integers(0, 2**64 - 1), max_size=20).map(tuple),
    headers=st.dictionaries(
        st.sampled_from(["x-session-id", "x-session-token", "x-preferred-zone"]), st.text()
    ),
    at=st.floats(0, 1e9),
)


@pytest.fixture(params=SCORERS, ids=lambda kind: kind.name)
def scorer(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


@ANY_FIXTURE
@given(request=requests, pool=pools)
def test_one_finite_score_per_candidate_between_zero_and_one(
    scorer: Any, request: Request, pool: list[Endpoint]
) -> None:
    scores = list(scorer.score(request, Candidates.of(pool)))
    assert len(scores) == len(pool)
    assert all(math.isfinite(score) and 0.0 <= score <= 1.0 for score in scores)
    assert list(scorer.score(request, Candidates.of(pool))) == scores


@ANY_FIXTURE
@given(request=requests, pool=pools, data=st.data())
def test_scores_do_not_depend_on_the_order_of_the_candidates(
    scorer: Any, request: Request, pool: list[Endpoint], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(pool))))
    straight = scorer.score(request, Candidates.of(pool))
    shuffled = scorer.score(request, Candidates.of([pool[index] for index in order]))
    assert list(shuffled) == [straight[index] for index in order]
