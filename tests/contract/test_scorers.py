"""What every registered scorer must keep, ours and anybody else's."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.framework import (
    Endpoint,
    EndpointId,
    Incarnation,
    Load,
    Lora,
    Match,
    PoolId,
    Request,
    Scorer,
    Source,
)
from epp.framework.registry import Kind, build_scorer, names

POOL = PoolId("pool")
NAMES = names(Kind.SCORER)


def _endpoint(number: int, load: Load, match: Match) -> Endpoint:
    ident = EndpointId(POOL, f"pod-{number}", 8000)
    return Endpoint(
        id=ident,
        address=f"10.0.0.{number}:8000",
        incarnation=Incarnation(ident, 1),
        load=load,
        match=match,
    )


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
pools = st.lists(st.tuples(loads, matches), max_size=12).map(
    lambda parts: [_endpoint(number, *part) for number, part in enumerate(parts)]
)
requests = st.builds(
    Request,
    id=st.just("r"),
    api=st.just("completions"),
    path=st.just("/v1/completions"),
    model=st.sampled_from(["", "m", "a", "b"]),
    prompt_tokens=st.integers(0, 10**6),
    keys=st.lists(st.integers(0, 2**64 - 1), max_size=20).map(tuple),
)
KNOWN = Load(waiting=3, running=5, kv_usage=0.9, active_blocks=90.0, total_blocks=100)


@pytest.fixture(params=NAMES)
def scorer(request: pytest.FixtureRequest) -> Scorer:
    return build_scorer(request.param, {})


def test_the_six_scorers_of_this_project_are_installed() -> None:
    assert {
        "decode-load-scorer",
        "kv-cache-utilization-scorer",
        "lora-affinity-scorer",
        "prefix-cache-scorer",
        "queue-scorer",
        "token-load-scorer",
    } <= set(NAMES)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=requests, pool=pools)
def test_one_finite_score_per_candidate_between_zero_and_one(
    scorer: Scorer, request: Request, pool: list[Endpoint]
) -> None:
    scores = scorer.score(request, pool)
    assert len(scores) == len(pool)
    assert all(math.isfinite(score) and 0.0 <= score <= 1.0 for score in scores)
    assert list(scorer.score(request, pool)) == list(scores)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=requests, pool=pools, data=st.data())
def test_scores_do_not_depend_on_the_order_of_the_candidates(
    scorer: Scorer, request: Request, pool: list[Endpoint], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(pool))))
    straight = scorer.score(request, pool)
    shuffled = scorer.score(request, [pool[index] for index in order])
    assert list(shuffled) == [straight[index] for index in order]


def test_no_candidates_give_no_scores(scorer: Scorer) -> None:
    assert list(scorer.score(Request(id="r", api="", path="/"), [])) == []


def test_an_endpoint_of_unknown_load_is_never_better_than_a_known_one(scorer: Scorer) -> None:
    request = Request(id="r", api="completions", path="/", prompt_tokens=640, keys=(1, 2, 3))
    unknown = _endpoint(0, Load(), Match())
    known = _endpoint(1, KNOWN, Match())
    scores = scorer.score(request, [unknown, known])
    assert scores[0] <= scores[1]


class _Counting(Sequence[Endpoint]):
    """Counts how often candidates are looked at: the budget of a scorer in place of a clock."""

    def __init__(self, endpoints: list[Endpoint]) -> None:
        self.endpoints = endpoints
        self.looks = 0

    def __len__(self) -> int:
        return len(self.endpoints)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        self.looks += 1
        return self.endpoints[index]


def test_the_work_grows_in_step_with_the_candidates(scorer: Scorer) -> None:
    pool = _Counting([_endpoint(number, KNOWN, Match()) for number in range(200)])
    scorer.score(Request(id="r", api="", path="/", keys=(1,), prompt_tokens=64), pool)
    assert pool.looks <= 8 * (len(pool) + 1)
