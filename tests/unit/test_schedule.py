"""The weighted choice: ties, order, broken scorers, the table."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from epp.framework import (
    Endpoint,
    EndpointId,
    Incarnation,
    Load,
    Match,
    PoolId,
    Request,
    Rung,
    Source,
)
from epp.request.schedule import MAX_ROWS, Profile, ScoringError, Weighted, draw, schedule


def _pool(count: int) -> list[Endpoint]:
    ids = [EndpointId(PoolId("p"), f"pod-{number:03}", 8000) for number in range(count)]
    return [
        Endpoint(id=ident, address=f"10.0.0.{number}:8000", incarnation=Incarnation(ident, 1))
        for number, ident in enumerate(ids)
    ]


class Fixed:
    """Rates by a table of pod names; whatever it is told."""

    def __init__(self, scores: dict[str, float], rest: float = 0.0) -> None:
        self.scores = scores
        self.rest = rest

    def score(self, _: Request, endpoints: Sequence[Endpoint], /) -> list[float]:
        return [self.scores.get(endpoint.id.name, self.rest) for endpoint in endpoints]


class Short:
    def score(self, _: Request, endpoints: Sequence[Endpoint], /) -> list[float]:
        return [0.5] * (len(endpoints) - 1)


REQUEST = Request(id="r1", api="completions", path="/", prompt_tokens=600, keys=tuple(range(9)))


def _profile(*scorers: tuple[str, object, float]) -> Profile:
    return Profile("t", tuple(Weighted(n, s, w) for n, s, w in scorers))  # type: ignore[arg-type]


def test_the_weighted_sum_decides() -> None:
    profile = _profile(("a", Fixed({"pod-000": 1.0}), 2.0), ("b", Fixed({"pod-001": 1.0}), 3.0))
    decision = schedule(REQUEST, _pool(3), profile, Random(1))
    assert decision.chosen[0].id.name == "pod-001"
    assert decision.weights == {"a": 2.0, "b": 3.0}
    assert [row.total for row in decision.table] == [3.0, 2.0, 0.0]
    assert decision.table[0].scores == {"a": 0.0, "b": 1.0}


def test_ties_reach_every_candidate_evenly_whatever_the_order_of_the_list() -> None:
    pool = _pool(5)
    chance = Random(7)
    shares: Counter[str] = Counter()
    for number in range(5000):
        part = pool[:3] if number % 2 else pool[3:][::-1]
        decision = schedule(REQUEST, part, _profile(("a", Fixed({}, 0.5), 1.0)), chance)
        shares[decision.chosen[0].id.name] += 1
    for endpoint in pool[:3]:
        assert abs(shares[endpoint.id.name] - 2500 / 3) < 3 * (2500 * (1 / 3) * (2 / 3)) ** 0.5
    for endpoint in pool[3:]:
        assert abs(shares[endpoint.id.name] - 1250) < 3 * (2500 / 4) ** 0.5


def test_a_tie_is_told() -> None:
    profile = _profile(("a", Fixed({}, 0.5), 1.0))
    assert "tie of 6" in schedule(REQUEST, _pool(6), profile, Random(3)).reasons
    alone = _profile(("a", Fixed({"pod-000": 1.0}), 1.0))
    assert not any("tie" in word for word in schedule(REQUEST, _pool(6), alone, Random(3)).reasons)


def test_several_destinations_come_best_first_and_once_each() -> None:
    profile = _profile(("a", Fixed({"pod-002": 1.0, "pod-000": 0.5}), 1.0))
    decision = schedule(REQUEST, _pool(4), profile, Random(2), count=3)
    names = [endpoint.id.name for endpoint in decision.chosen]
    assert names[:2] == ["pod-002", "pod-000"]
    assert len(set(names)) == 3
    assert len(schedule(REQUEST, _pool(2), profile, Random(2), count=9).chosen) == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 7.0, -7.0])
def test_numbers_out_of_range_neither_win_for_ever_nor_break(bad: float) -> None:
    profile = _profile(("bad", Fixed({"pod-000": bad}), 1.0), ("ok", Fixed({}, 1.0), 1.0))
    decision = schedule(REQUEST, _pool(2), profile, Random(1))
    assert all(0.0 <= score <= 1.0 for row in decision.table for score in row.scores.values())
    assert "bad out of range" in decision.reasons


def test_a_scorer_that_leaves_a_candidate_out_is_an_error() -> None:
    with pytest.raises(ScoringError, match="rated 1 of 2"):
        schedule(REQUEST, _pool(2), _profile(("short", Short(), 1.0)), Random(1))


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight of a"):
        _profile(("a", Fixed({}), weight))


def test_a_profile_without_scorers_or_with_one_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="no scorers"):
        _profile()
    with pytest.raises(ValueError, match="twice"):
        _profile(("a", Fixed({}), 1.0), ("a", Fixed({}), 1.0))


def test_reasons_say_what_was_held_and_how_long_the_queue_was() -> None:
    ident = EndpointId(PoolId("p"), "pod", 8000)
    warm = Endpoint(
        id=ident,
        address="10.0.0.1:8000",
        incarnation=Incarnation(ident, 1),
        load=Load(waiting=0),
        match=Match(512, Source.PRECISE),
    )
    profile = _profile(("a", Fixed({}, 1.0), 1.0))
    decision = schedule(REQUEST, [warm], profile, Random(1), rung=Rung.PREDICTED)
    assert decision.reasons == ("prefix 512/600 tokens precise", "queue 0")
    assert decision.rung is Rung.PREDICTED
    cold = schedule(REQUEST, _pool(1), profile, Random(1))
    assert cold.reasons == ("prefix not held there", "queue not known")


def test_the_score_table_is_bounded_and_holds_the_chosen() -> None:
    decision = schedule(
        REQUEST, _pool(MAX_ROWS + 1), _profile(("a", Fixed({}, 0.5), 1.0)), Random(5)
    )
    assert len(decision.table) == MAX_ROWS
    assert decision.table[0].endpoint == decision.chosen[0].id


def test_a_draw_reaches_everybody_and_says_so() -> None:
    chance = Random(4)
    names = {draw(REQUEST, _pool(4), chance).chosen[0].id.name for _ in range(100)}
    assert len(names) == 4
    assert draw(REQUEST, _pool(4), chance).rung is Rung.ANY_READY
