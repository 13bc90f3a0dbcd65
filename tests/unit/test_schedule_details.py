"""Borders of one profile's decision: ties, ranges, and what a table and its reasons say there."""

import sys
from collections import Counter
from random import Random

import numpy as np
import pytest

from epp.framework import Match, Request, Source
from epp.request.schedule import TIE, schedule
from epp.request.scores import MANY, MAX_ROWS, best_first
from tests.fakes.plans import Booth, Broken, Fixed, Only, profile
from tests.unit.test_schedule import Says, _pool, run


@pytest.mark.parametrize(("behind", "tied"), [(TIE, True), (2 * TIE, False)])
def test_ratings_as_close_as_float_sums_can_differ_are_a_tie(behind: float, tied: bool) -> None:
    rated = profile(("a", Fixed({"pod-000": 1.0 - behind}, 1.0), 1.0))
    assert ("tie of 3" in run(_pool(3), rated).reasons) == tied
    assert (
        "tie of 2" not in run(_pool(2), profile(("a", Fixed({"pod-000": 0.5}, 1.0), 1.0))).reasons
    )


def test_the_stand_in_for_a_picker_chooses_among_all_that_tie() -> None:
    chance, rated = (
        Random(4),
        profile(("a", Fixed({"pod-000": 1.0 - TIE, "pod-002": 0.5}, 1.0), 1.0), picker=Broken()),
    )
    seen = Counter(run(_pool(3), rated, chance=chance).chosen[0].id.name for _ in range(60))
    assert set(seen) == {"pod-000", "pod-001"}


def test_the_stand_in_names_one_endpoint_however_many_tie() -> None:
    rated = profile(("a", Fixed(rest=1.0), 1.0), picker=Broken())
    assert len(run(_pool(4), rated).chosen) == 1


def test_one_tied_endpoint_is_no_tie_and_two_are() -> None:
    rated = profile(("a", Fixed({"pod-000": 1.0, "pod-001": 1.0}), 1.0))
    assert "tie of 2" in run(_pool(3), rated).reasons


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_scores_at_the_ends_of_the_range_are_in_range(score: float) -> None:
    booth = Booth()
    rated = profile(("edge", Fixed(rest=score), 1.0), ("bad", Fixed({"pod-000": 1.5}, 0.5), 1.0))
    made = run(_pool(2), rated, booth=booth)
    assert booth.failures == [("bad", "out-of-range")]
    assert made.weights == {"edge": 1.0, "bad": 1.0}


@pytest.mark.parametrize("beyond", [1.5, -0.5])
def test_a_score_a_little_out_of_range_is_clamped_beside_good_ones(beyond: float) -> None:
    """Only on one side, so that both sides are looked at."""
    booth = Booth()
    made = run(_pool(2), profile(("bad", Fixed({"pod-000": beyond}, 0.5), 1.0)), booth=booth)
    assert booth.failures == [("bad", "out-of-range")]
    assert all(0.0 <= row.total <= 1.0 for row in made.table)


def test_a_weight_may_be_a_fraction() -> None:
    made = run(_pool(2), profile(("a", Fixed({"pod-000": 0.5}, 0.25), 0.5)))
    assert [row.total for row in made.table] == [0.25, 0.125]


def test_the_first_row_may_be_picked_and_the_last_and_none_beyond() -> None:
    booth = Booth()
    rated = profile(("a", Fixed(rest=0.5), 1.0), picker=Says(lambda count: [count - 1, 0]))
    assert [one.id.name for one in run(_pool(3), rated, booth=booth).chosen] == [
        "pod-002",
        "pod-000",
    ]
    assert booth.failures == []


def test_a_filter_that_fails_is_told_from_one_that_leaves_nobody() -> None:
    rated = profile(filters={"odd": Only(), "broken": Broken()})
    assert run(_pool(2), rated).reasons[-2:] == ("odd left nobody", "broken failed")


def test_a_filter_that_fails_on_a_single_candidate_has_not_kept_it() -> None:
    rated = profile(filters={"broken": Broken()})
    assert run(_pool(1), rated).reasons[-1] == "broken failed"
    asked = Request(id="r", api="completions", path="/")
    assert schedule(asked, _pool(1), rated, Random(1), Booth().ballot, must=False).chosen == ()


def test_a_filter_that_keeps_one_of_two_leaves_that_one() -> None:
    made = run(_pool(2), profile(filters={"one": Only("pod-001")}))
    assert made.left.excluded(9) == [("one", 1, ("10.0.0.0:8000",))]
    assert made.chosen[0].id.name == "pod-001"


def test_where_nobody_may_be_chosen_no_table_and_no_weights_are_told() -> None:
    rated = profile(("a", Fixed(rest=1.0), 1.0), filters={"none": Only()})
    asked = Request(id="r", api="completions", path="/")
    made = schedule(asked, _pool(2), rated, Random(1), Booth().ballot, must=False)
    assert (made.chosen, made.reasons, tuple(made.table), made.weights) == ((), (), (), {})
    assert len(made.left) == 0


def told(request: Request, **fields: object) -> tuple[str, ...]:
    rated = profile(("a", Fixed(rest=1.0), 1.0))
    return schedule(request, _pool(1, **fields), rated, Random(1), Booth().ballot).reasons


def test_the_reason_tells_a_short_prompt_from_one_that_nobody_holds() -> None:
    short = Request(id="r", api="completions", path="/", prompt_tokens=9, scored=True)
    assert told(short)[0] == "prompt shorter than a block"
    unscored = Request(id="r", api="completions", path="/", scored=False)
    assert told(unscored)[0] == "queue not known"


def test_a_match_of_one_token_is_a_match_and_one_of_none_is_not() -> None:
    asked = Request(id="r", api="completions", path="/", prompt_tokens=64, keys=(1,))
    assert told(asked, match=Match(1, Source.PRECISE))[0] == "prefix 1/64 tokens precise"
    assert told(asked, match=Match(0, Source.PREDICTED, 0.5))[0] == "prefix not held there"
    whole = Match(64, Source.PREDICTED, 1.0)
    assert told(asked, match=whole)[0] == "prefix 64/64 tokens predicted"


# The table


def test_the_table_is_a_sequence_of_its_best_rows() -> None:
    rated = profile(("a", Fixed({"pod-001": 1.0, "pod-002": 0.5}), 1.0))
    table = run(_pool(3), rated).table
    assert [row.endpoint.name for row in table[:2]] == ["pod-001", "pod-002"]
    assert [row.address for row in table[-1:]] == ["10.0.0.0:8000"]
    assert len(table) == 3
    assert isinstance(table[0:2], tuple)


def test_the_table_has_no_more_rows_than_asked_for_even_of_the_chosen() -> None:
    rated = profile(("a", Fixed(rest=0.5), 1.0), picker=Says(lambda count: list(range(count))))
    assert [row.endpoint.name for row in run(_pool(5), rated, rows=2).table] == [
        "pod-000",
        "pod-001",
    ]
    one = profile(("a", Fixed({"pod-004": 1.0}, 0.5), 1.0), picker=Says(lambda _: [4]))
    assert len(run(_pool(5), one, rows=4).table) == 4
    assert len(run(_pool(40), one).table) == MAX_ROWS == 16


def test_the_scores_of_each_row_are_its_own() -> None:
    rated = profile(("a", Fixed({"pod-001": 1.0}), 1.0), ("b", Fixed({"pod-000": 0.5}), 1.0))
    rows = {row.endpoint.name: dict(row.scores) for row in run(_pool(2), rated).table}
    assert rows == {"pod-001": {"a": 1.0, "b": 0.0}, "pod-000": {"a": 0.0, "b": 0.5}}


def test_rows_tell_a_precise_match_and_none() -> None:
    rated = profile(("a", Fixed(), 1.0))
    exact = run(_pool(1, match=Match(64, Source.PRECISE)), rated).table[0].match
    assert exact == Match(64, Source.PRECISE)
    assert run(_pool(1), rated).table[0].match == Match(0, Source.NONE)


def test_an_array_of_rows_is_as_good_as_a_list() -> None:
    rated = profile(("a", Fixed(rest=0.5), 1.0), picker=Says(lambda _: np.array([2, 0])))
    assert [one.id.name for one in run(_pool(3), rated).chosen] == ["pod-002", "pod-000"]


@pytest.mark.parametrize("count", [1, 2, MANY - 1, MANY, 2 * MANY])
@pytest.mark.parametrize("most", [1, MAX_ROWS + 1, MANY, sys.maxsize])
def test_the_best_come_first_however_many_there_are(count: int, most: int) -> None:
    totals = np.random.default_rng(count).permutation(count) / count
    best = sorted(range(count), key=lambda row: -totals[row])
    assert best_first(totals, most) == best[:most]
