"""PrefixIndex: lookups, limits, retirement."""

import pytest

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.prefix import PrefixIndex


def life(name: str, start_ms: int = 1) -> Incarnation:
    return Incarnation(EndpointId(PoolId("p"), name, 8000), start_ms)


A, B, C = life("a"), life("b"), life("c")


def test_a_lookup_counts_leading_blocks_of_each_candidate() -> None:
    index = PrefixIndex(100)
    index.store(A, [1, 2, 3, 4])
    index.store(B, [1, 2, 9])
    index.store(C, [2, 3])
    assert index.lookup([1, 2, 3, 4, 5], [A, B, C]) == {A: 4, B: 2}
    assert index.lookup([1, 2], (A, B, C)) == {A: 2, B: 2}
    assert index.lookup([7], [A, B, C]) == {}


@pytest.mark.parametrize("candidates", [[], (), [life("stranger")]])
def test_a_lookup_for_nobody_or_strangers_finds_nothing(candidates: list[Incarnation]) -> None:
    index = PrefixIndex(100)
    index.store(A, [1])
    assert index.lookup([1], candidates) == {}


def test_a_prompt_without_full_blocks_matches_nobody() -> None:
    index = PrefixIndex(100)
    index.store(A, [1])
    index.store(A, [])
    assert index.lookup([], [A]) == {}


def test_a_hole_ends_the_match_and_a_refill_restores_it() -> None:
    index = PrefixIndex(100)
    index.store(A, [1, 2, 3])
    index.remove(A, [2])
    assert index.lookup([1, 2, 3], [A]) == {A: 1}
    index.store(A, [2])
    assert index.lookup([1, 2, 3], [A]) == {A: 3}


def test_the_same_tuple_asked_again_sees_every_change() -> None:
    index = PrefixIndex(100)
    asked = (A, B)
    assert index.lookup([1], asked) == {}
    index.store(A, [1])
    assert index.lookup([1], asked) == {A: 1}
    index.store(B, [1])
    assert index.lookup([1], asked) == {A: 1, B: 1}
    index.clear(A)
    assert index.lookup([1], asked) == {B: 1}


def test_another_tuple_asked_next_has_its_own_answer() -> None:
    index = PrefixIndex(100)
    index.store(A, [1])
    index.store(B, [1])
    assert index.lookup([1], (A,)) == {A: 1}
    assert index.lookup([1], (B,)) == {B: 1}


def test_the_same_list_changed_in_between_is_asked_anew() -> None:
    index = PrefixIndex(100)
    index.store(A, [1])
    index.store(B, [1])
    asked = [A]
    assert index.lookup([1], asked) == {A: 1}
    asked[0] = B
    assert index.lookup([1], asked) == {B: 1}


def test_blocks_over_the_limit_are_refused_and_counted() -> None:
    index = PrefixIndex(3)
    index.store(A, [1, 2, 3])
    assert (index.blocks(A), index.refused) == (3, 0)
    index.store(A, [1, 4, 5])
    assert (index.blocks(A), index.refused) == (3, 2)
    index.remove(A, [1])
    index.store(A, [4])
    assert index.lookup([4], [A]) == {A: 1}
    index.store(B, [7, 8, 9])
    assert index.blocks(B) == 3


def test_an_engine_that_was_cleared_fills_again() -> None:
    index = PrefixIndex(100)
    index.store(A, [1, 2])
    index.clear(A)
    index.clear(A)
    assert index.blocks(A) == 0
    index.store(A, [1])
    assert index.lookup([1, 2], [A]) == {A: 1}


def test_a_forgotten_engine_that_is_a_member_again_is_welcome() -> None:
    index = PrefixIndex(100)
    index.store(A, [1])
    index.store(B, [1])
    index.retain([B])
    index.store(A, [1])
    assert index.lookup([1], [A, B]) == {B: 1}
    assert index.late == 1
    index.retain([A, B])
    index.store(A, [1])
    assert index.lookup([1], [A, B]) == {A: 1, B: 1}


def test_the_list_of_forgotten_engines_is_bounded() -> None:
    index = PrefixIndex(100)
    for at in range(5000):
        index.forget(life(str(at)))
    assert len(index._forgotten) == 4096


def test_the_limit_is_positive() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        PrefixIndex(0)
