"""Who is chosen among the rated: the best, anybody, or each by its share."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import PluginError
from epp.framework import registry, sample
from epp.framework.registry import Kind

NAMES = registry.names(Kind.PICKER)


def picker(kind: str, **parameters: Any) -> Any:
    found = registry.find(kind)
    assert found is not None
    return found.build(parameters)


def shares(plugin: Any, totals: Sequence[float], rounds: int = 4000) -> list[float]:
    """How often each candidate comes first."""
    chance = Random(7)
    first = Counter(plugin.pick(totals, chance)[0] for _ in range(rounds))
    return [first[row] / rounds for row in range(len(totals))]


@pytest.mark.parametrize("kind", NAMES)
@given(
    totals=st.lists(st.floats(-10, 10), min_size=1, max_size=20),
    most=st.integers(1, 30),
    seed=st.integers(0, 2**32),
)
def test_each_chosen_row_stands_once_and_as_many_as_there_can_be(
    kind: str, totals: list[float], most: int, seed: int
) -> None:
    chosen = picker(kind, maxNumOfEndpoints=most).pick(totals, Random(seed))
    assert len(chosen) == min(most, len(totals))
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(len(totals)))


@given(totals=st.lists(st.floats(-10, 10), min_size=1, max_size=20), seed=st.integers(0, 2**32))
def test_the_best_come_first_and_in_order(totals: list[float], seed: int) -> None:
    chosen = picker("max-score-picker", maxNumOfEndpoints=len(totals)).pick(totals, Random(seed))
    rated = [totals[row] for row in chosen]
    assert all(one >= other - 2e-9 for one, other in pairwise(rated))


def test_equals_come_first_equally_often_wherever_they_stand() -> None:
    found = shares(picker("max-score-picker"), [1.0, 0.5, 1.0 - 1e-10, 1.0])
    assert found[1] == 0.0
    assert all(0.3 < found[row] < 0.37 for row in (0, 2, 3))


def test_the_second_choice_is_as_fair_as_the_first() -> None:
    plugin, chance = picker("max-score-picker", maxNumOfEndpoints=2), Random(3)
    pairs = Counter(tuple(plugin.pick([1.0, 1.0, 1.0, 0.2], chance)) for _ in range(6000))
    assert len(pairs) == 6
    assert all(800 < count < 1200 for count in pairs.values())


def test_anybody_is_chosen_whatever_the_rating() -> None:
    assert all(0.22 < share < 0.28 for share in shares(picker("random-picker"), [9, 0, -1, 3]))


def test_the_chance_of_each_is_its_share_of_the_ratings() -> None:
    found = shares(picker("weighted-random-picker"), [1.0, 2.0, 5.0, 0.0])
    assert found[3] == 0.0
    for share, wanted in zip(found, (0.125, 0.25, 0.625), strict=False):
        assert abs(share - wanted) < 0.03


@pytest.mark.parametrize("totals", [[0.0, 0.0, 0.0, 0.0], [-1.0, -2.0, -3.0, 0.0]])
def test_where_nobody_is_rated_above_0_anybody_is_chosen(totals: list[float]) -> None:
    found = shares(picker("weighted-random-picker"), totals)
    assert all(0.22 < share < 0.28 for share in found)


def test_tiny_ratings_are_told_apart_as_large_ones_are() -> None:
    found = shares(picker("weighted-random-picker"), [1e-9, 3e-9])
    assert abs(found[0] - 0.25) < 0.03


def test_who_is_rated_0_comes_after_all_others() -> None:
    plugin, chance = picker("weighted-random-picker", maxNumOfEndpoints=3), Random(5)
    for _ in range(100):
        assert set(plugin.pick([0.0, 1.0, 0.0, 0.1], chance)[:2]) == {1, 3}


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("count", [0, -1])
def test_a_picker_that_would_choose_nobody_is_refused(kind: str, count: int) -> None:
    with pytest.raises(PluginError, match="maxNumOfEndpoints must be at least 1"):
        picker(kind, maxNumOfEndpoints=count)


class _Edge:
    """A random source at the edge of its range."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("value", [0.0, 1.0 - 2**-53])
def test_the_edges_of_chance_choose_somebody(kind: str, value: float) -> None:
    chosen = picker(kind, maxNumOfEndpoints=3).pick([1.0, 1.0, 0.0], _Edge(value))
    assert sorted(chosen) == [0, 1, 2]


def test_a_sample_is_any_order_of_any_choice() -> None:
    chance = Random(11)
    drawn = Counter(tuple(sample("abc", 2, chance)) for _ in range(6000))
    assert len(drawn) == 6
    assert all(850 < count < 1150 for count in drawn.values())
    assert sample("abc", 0, chance) == []
    assert sorted(sample("abc", 9, chance)) == ["a", "b", "c"]
