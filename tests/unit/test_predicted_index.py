"""PredictedIndex: how predictions begin and end."""

import pytest

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.prefix import PredictedIndex
from epp.state.prefix.predicted import MARKS


def life(name: str) -> Incarnation:
    return Incarnation(EndpointId(PoolId("p"), name, 8000), 1)


A, B = life("a"), life("b")


def test_a_prediction_counts_until_its_time_is_up() -> None:
    index = PredictedIndex(100, ttl_s=10)
    index.insert(A, [1, 2, 3], "r", now=0)
    assert index.lookup([1, 2, 3, 4], [A, B], now=9.9) == {A: 3}
    assert index.lookup([1, 2, 3, 4], [A, B], now=10) == {}


def test_a_second_request_keeps_the_common_head_longer_than_the_tail() -> None:
    index = PredictedIndex(100, ttl_s=10)
    index.insert(A, [1, 2, 3, 4, 5], "r1", now=0)
    index.insert(A, [1, 2], "r2", now=5)
    assert index.lookup([1, 2, 3, 4, 5], [A], now=9) == {A: 5}
    assert index.lookup([1, 2, 3, 4, 5], [A], now=12) == {A: 2}
    assert index.lookup([1, 2, 3, 4, 5], [A], now=15) == {}


def test_a_confirmed_prediction_ends_after_its_grace() -> None:
    index = PredictedIndex(100, ttl_s=100)
    index.insert(A, [1, 2], "r", now=0)
    index.confirm("r", now=10, grace_s=5)
    assert index.lookup([1, 2], [A], now=14.9) == {A: 2}
    assert index.lookup([1, 2], [A], now=15) == {}
    index.confirm("r", now=20, grace_s=5)
    assert index.lookup([1, 2], [A], now=20) == {}


def test_a_failure_after_another_requests_success_takes_nothing_from_it() -> None:
    index = PredictedIndex(100, ttl_s=100)
    index.insert(A, [1, 2], "good", now=0)
    index.insert(A, [1, 2, 3], "bad", now=0)
    index.confirm("good", now=1, grace_s=50)
    index.drop("bad")
    assert index.lookup([1, 2, 3], [A], now=2) == {A: 2}


def test_a_request_may_predict_on_two_endpoints_and_fails_on_both() -> None:
    index = PredictedIndex(100, ttl_s=100)
    index.insert(A, [1, 2], "r", now=0)
    index.insert(B, [1], "r", now=0)
    assert index.lookup([1, 2], [A, B], now=1) == {A: 2, B: 1}
    index.drop("r")
    assert index.lookup([1, 2], [A, B], now=1) == {}
    assert len(index) == 0


def test_a_request_that_is_inserted_twice_counts_once() -> None:
    index = PredictedIndex(100, ttl_s=100)
    index.insert(A, [1, 2], "r", now=0)
    index.insert(A, [1], "r", now=1)
    assert index.lookup([1, 2], [A], now=2) == {A: 1}
    index.drop("r")
    assert (len(index), index.open_requests) == (0, 0)


def test_the_oldest_prompt_loses_its_tail_before_its_head() -> None:
    index = PredictedIndex(6, ttl_s=100)
    index.insert(A, [1, 2, 3, 4], "r1", now=0)
    index.insert(B, [5, 6, 7], "r2", now=1)
    assert len(index) == 6
    assert index.evicted == 1
    assert index.lookup([1, 2, 3, 4], [A], now=2) == {A: 3}
    assert index.lookup([5, 6, 7], [B], now=2) == {B: 3}


def test_of_a_prompt_longer_than_the_limit_the_head_is_kept() -> None:
    index = PredictedIndex(4, ttl_s=100)
    index.insert(A, [1, 2], "r1", now=0)
    index.insert(A, range(10, 20), "r2", now=0)
    assert index.lookup(range(10, 20), [A], now=1) == {A: 4}
    assert len(index) == 4


def test_a_late_failure_of_an_evicted_prompt_leaves_its_successor_alone() -> None:
    index = PredictedIndex(2, ttl_s=100)
    index.insert(A, [1, 2], "old", now=0)
    index.insert(A, [3, 4], "between", now=0)
    index.insert(A, [1, 2], "new", now=0)
    index.drop("old")
    index.confirm("between", now=1, grace_s=1)
    assert index.lookup([1, 2], [A], now=2) == {A: 2}


def test_open_predictions_of_one_shared_prompt_are_bounded() -> None:
    index = PredictedIndex(10, ttl_s=100)
    for at in range(1000):
        index.insert(A, range(10), str(at), now=0)
    assert index.open_requests == 4
    assert index.lookup(range(10), [A], now=1) == {A: 10}
    for at in range(1000):
        index.drop(str(at))
    # Those that were too many could not be dropped: they run out by time.
    assert index.lookup(range(10), [A], now=99) == {A: 10}
    assert index.lookup(range(10), [A], now=100) == {}


def test_a_prediction_finds_all_its_blocks_after_later_prompts_left_it_halfway() -> None:
    index = PredictedIndex(100, ttl_s=100)
    index.insert(A, [1, 2, 3, 4, 5, 6], "whole", now=0)
    index.insert(A, [1, 2, 3, 4, 7], "late", now=1)
    index.insert(A, [1, 2, 8], "early", now=2)
    index.drop("late")
    index.drop("early")
    assert index.lookup([1, 2, 3, 4, 5, 6], [A], now=3) == {A: 6}
    index.drop("whole")
    assert index.lookup([1, 2, 3, 4, 5, 6], [A], now=3) == {}
    assert (len(index), index.open_requests) == (0, 0)


def test_what_a_later_prompt_shares_outlives_the_prediction_that_began_it() -> None:
    index = PredictedIndex(100, ttl_s=100)
    index.insert(A, [1, 2, 3], "first", now=0)
    index.insert(A, [1, 2, 4], "second", now=1)
    index.drop("first")
    assert index.lookup([1, 2, 3], [A], now=2) == {A: 2}
    assert index.lookup([1, 2, 4], [A], now=2) == {A: 3}
    index.confirm("second", now=3, grace_s=5)
    assert index.lookup([1, 2, 4], [A], now=7.9) == {A: 3}
    assert index.lookup([1, 2, 4], [A], now=8) == {}


def test_a_prompt_that_lost_its_tail_is_predicted_whole_again() -> None:
    index = PredictedIndex(6, ttl_s=100)
    index.insert(A, [1, 2, 3, 4], "r1", now=0)
    index.insert(B, [5, 6, 7, 8], "r2", now=1)
    assert index.lookup([1, 2, 3, 4], [A], now=1) == {A: 2}
    index.insert(A, [1, 2, 3, 4], "r3", now=2)
    assert index.lookup([1, 2, 3, 4], [A], now=2) == {A: 4}
    index.drop("r3")
    assert index.lookup([1, 2, 3, 4], [A], now=2) == {A: 2}


def test_a_prompt_without_full_blocks_predicts_nothing() -> None:
    index = PredictedIndex(10, ttl_s=100)
    index.insert(A, [], "r", now=0)
    assert index.lookup([], [A], now=0) == {}
    assert (len(index), index.open_requests) == (0, 0)


def test_a_prompt_that_failed_is_not_held_up_by_one_that_ran_out() -> None:
    index = PredictedIndex(100, ttl_s=10)
    index.insert(A, [1], "old", now=0)
    index.insert(A, [1], "bad", now=11)
    index.drop("bad")
    assert index.lookup([1], [A], now=12) == {}


def test_a_restarted_engine_is_predicted_to_hold_nothing() -> None:
    index = PredictedIndex(100, ttl_s=100)
    index.insert(A, [1, 2], "r1", now=0)
    index.insert(B, [1], "r2", now=0)
    index.forget(A)
    index.forget(life("stranger"))
    assert index.lookup([1, 2], [A, B], now=1) == {B: 1}
    index.insert(A, [1], "r3", now=1)
    index.drop("r1")
    assert index.lookup([1, 2], [A, B], now=1) == {A: 1, B: 1}
    for at in range(10):
        index.insert(B, [1], f"more{at}", now=1)
    assert len(index) == 2


def test_expired_blocks_are_cleared_away_as_new_ones_come() -> None:
    index = PredictedIndex(10_000, ttl_s=1)
    for at in range(1000):
        index.insert(A, range(at * 10, at * 10 + 10), str(at), now=float(at))
    assert len(index) < 100
    assert index.open_requests < 10


@pytest.mark.parametrize("wrong", [(0, 1.0), (1, 0.0)])
def test_limits_of_predictions_are_positive(wrong: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        PredictedIndex(*wrong)


def test_the_latest_predictions_are_marked_by_their_last_key_and_some_before() -> None:
    index = PredictedIndex(1000, ttl_s=10)
    index.insert(A, [1, 2, 3], "old", now=0)
    index.insert(A, list(range(100, 200)), "long", now=0)
    index.insert(B, [7], "new", now=0)
    marks = index.latest(100)
    assert marks.keys() == {A, B}
    assert marks[B] == (7,)
    assert len(set(marks[A]) - {1, 2, 3}) <= MARKS
    assert {1, 2, 3, 199} < set(marks[A])
    index.confirm("old", now=1, grace_s=0)
    assert not {1, 2, 3} & set(index.latest(100)[A])


def test_of_one_prompt_all_marks_are_told_or_none_and_the_latest_go_first() -> None:
    index = PredictedIndex(1000, ttl_s=10)
    index.insert(A, [1, 2, 3], "old", now=0)
    index.insert(A, [4, 5], "new", now=0)
    assert set(index.latest(4)[A]) == {4, 5}
    assert set(index.latest(5)[A]) == {1, 2, 3, 4, 5}
    assert index.latest(1) == {}


def test_no_more_is_predicted_on_an_engine_than_its_cache_has_room_for() -> None:
    index = PredictedIndex(100, ttl_s=10)
    index.insert(A, [1, 2, 3, 4], "old", now=0, room=6)
    index.insert(B, [1, 2, 3, 4], "there", now=0)
    index.insert(A, [5, 6, 7, 8], "new", now=0, room=6)
    assert index.lookup([1, 2, 3, 4], [A, B], now=1) == {A: 2, B: 4}
    assert index.lookup([5, 6, 7, 8], [A, B], now=1) == {A: 4}
    assert index.evicted == 2
    index.insert(A, [1, 2], "again", now=1, room=6)
    index.insert(A, [9], "next", now=1, room=6)
    assert index.lookup([1, 2], [A], now=1) == {A: 2}
    assert index.lookup([5, 6, 7, 8], [A], now=1) == {A: 3}
    index.insert(A, list(range(20, 40)), "long", now=1, room=6)
    assert index.lookup(list(range(20, 40)), [A], now=1) == {A: 6}
    assert len(index) == 10
    index.insert(A, [50], "none", now=1, room=0)
    assert index.lookup([50], [A], now=1) == {}


def test_a_life_that_is_over_takes_no_room_from_the_next() -> None:
    index = PredictedIndex(100, ttl_s=10)
    index.insert(A, [1, 2, 3], "r", now=0, room=3)
    index.forget(A)
    index.insert(A, [4, 5, 6], "s", now=0, room=3)
    assert index.lookup([4, 5, 6], [A], now=0) == {A: 3}
    assert index.lookup([1], [A], now=0) == {}
