"""One profile over candidates: filters, the weighted sum, ties, faulty plugins, the table."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from epp.framework import (
    Candidates,
    Load,
    Match,
    Request,
    Source,
)
from epp.plugins.pickers.max_score import MaxScore
from epp.request.plan.live import BuiltProfile
from epp.request.schedule import Selection, schedule
from epp.request.scores import MAX_ROWS
from tests.fakes.endpoints import endpoint
from tests.fakes.plans import Booth, Broken, Fixed, Only, profile

REQUEST = Request(id="r1", api="completions", path="/", prompt_tokens=600, keys=tuple(range(9)))


def _pool(count: int, **fields: Any) -> Candidates:
    return Candidates.of(
        [
            endpoint(f"pod-{number:03}", address=f"10.0.0.{number}:8000", **fields)
            for number in range(count)
        ]
    )


def run(
    candidates: Candidates,
    rated: BuiltProfile,
    *,
    chance: Random | None = None,
    booth: Booth | None = None,
    rows: int = MAX_ROWS,
) -> Selection:
    ballot = (booth or Booth()).ballot
    return schedule(REQUEST, candidates, rated, chance or Random(1), ballot, rows=rows)


class Says:
    """Answers what it is told to, whatever it is asked."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer

    def score(self, _: Request, candidates: Candidates, /) -> Any:
        return self.answer(len(candidates))

    keep = score

    def pick(self, totals: Sequence[float], _: Any, /) -> Any:
        return self.answer(len(totals))


def test_the_weighted_sum_decides() -> None:
    rated = profile(("a", Fixed({"pod-000": 1.0}), 2.0), ("b", Fixed({"pod-001": 1.0}), 3.0))
    made = run(_pool(3), rated)
    assert made.chosen[0].id.name == "pod-001"
    assert made.weights == {"a": 2.0, "b": 3.0}
    assert [row.total for row in made.table] == [3.0, 2.0, 0.0]
    assert made.table[0].scores == {"a": 0.0, "b": 1.0}


def test_ties_reach_every_candidate_evenly_whatever_the_order_of_the_list() -> None:
    pool = _pool(5)
    chance = Random(7)
    shares: Counter[str] = Counter()
    for number in range(5000):
        part = pool.take([0, 1, 2]) if number % 2 else pool.take([4, 3])
        made = run(part, profile(("a", Fixed(rest=0.5), 1.0)), chance=chance)
        shares[made.chosen[0].id.name] += 1
    for name in ("pod-000", "pod-001", "pod-002"):
        assert abs(shares[name] - 2500 / 3) < 3 * (2500 * (1 / 3) * (2 / 3)) ** 0.5
    for name in ("pod-003", "pod-004"):
        assert abs(shares[name] - 1250) < 3 * (2500 / 4) ** 0.5


def test_a_tie_is_told() -> None:
    assert "tie of 6" in run(_pool(6), profile(("a", Fixed(rest=0.5), 1.0))).reasons
    alone = profile(("a", Fixed({"pod-000": 1.0}), 1.0))
    assert not any("tie" in word for word in run(_pool(6), alone).reasons)


def test_several_destinations_come_best_first_and_once_each() -> None:
    picker = MaxScore(max_num_of_endpoints=3)
    rated = profile(("a", Fixed({"pod-002": 1.0, "pod-000": 0.5}), 1.0), picker=picker)
    names = [endpoint.id.name for endpoint in run(_pool(4), rated).chosen]
    assert names[:2] == ["pod-002", "pod-000"]
    assert len(set(names)) == 3
    assert len(run(_pool(2), rated).chosen) == 2


def test_without_scorers_any_candidate_is_as_good_as_another() -> None:
    chance = Random(2)
    made = [run(_pool(4), profile(), chance=chance) for _ in range(100)]
    assert len({one.chosen[0].id for one in made}) == 4
    assert made[0].table == ()


# Scorers that fail


@pytest.mark.parametrize(
    ("plugin", "why"),
    [
        (Broken(), "raised"),
        (Says(lambda count: [0.5] * (count - 1)), "wrong-shape"),
        (Says(lambda count: [[0.5]] * count), "wrong-shape"),
        (Says(lambda _: 0.5), "wrong-shape"),
        (Says(lambda count: ["x"] * count), "raised"),
        (Says(lambda _: None), "wrong-shape"),
        (Fixed({"pod-000": float("nan")}, 1.0), "not-finite"),
        (Fixed({"pod-000": float("inf")}, 0.0), "not-finite"),
        (Fixed({"pod-000": -float("inf")}, 0.0), "not-finite"),
    ],
)
def test_a_scorer_that_fails_loses_its_vote_and_the_others_decide(plugin: Any, why: str) -> None:
    booth = Booth()
    made = run(
        _pool(3), profile(("bad", plugin, 9.0), ("ok", Fixed({"pod-001": 0.5}), 1.0)), booth=booth
    )
    assert made.chosen[0].id.name == "pod-001"
    assert booth.failures == [("bad", why)]
    assert made.weights == {"ok": 1.0}
    assert "without bad" in made.reasons
    assert dict(made.table[0].scores) == {"ok": 0.5}


@pytest.mark.parametrize(("bad", "counts"), [(7.0, 1.0), (-7.0, 0.0)])
def test_a_score_out_of_range_is_clamped_and_counted(bad: float, counts: float) -> None:
    booth = Booth()
    made = run(_pool(2), profile(("bad", Fixed({"pod-000": bad}, 0.5), 1.0)), booth=booth)
    assert booth.failures == [("bad", "out-of-range")]
    assert {row.endpoint.name: row.total for row in made.table} == {
        "pod-000": counts,
        "pod-001": 0.5,
    }


def test_where_every_scorer_fails_somebody_serves() -> None:
    made = run(_pool(3), profile(("a", Broken(), 1.0), ("b", Broken(), 1.0)))
    assert len(made.chosen) == 1
    assert made.weights == {}


def test_columns_of_plugins_are_left_as_they_were() -> None:
    column = np.array([0.25, 0.5])
    column.flags.writeable = False
    made = run(_pool(2), profile(("a", Says(lambda _: column), 2.0)))
    assert [row.total for row in made.table] == [1.0, 0.5]
    assert column.tolist() == [0.25, 0.5]


# Slow plugins


class Slow:
    """Takes its time, by one clock or the other."""

    def __init__(self, booth: Booth, *, cpu: float = 0.0, wall: float = 0.0) -> None:
        self.booth, self.cpu, self.wall = booth, cpu, wall

    def score(self, _: Request, candidates: Candidates, /) -> list[float]:
        self.booth.cpu += self.cpu
        self.booth.now += self.wall
        return [1.0] * len(candidates)


@pytest.mark.parametrize(
    ("took", "lost"),
    [
        ({"cpu": 0.019, "wall": 0.1}, False),
        ({"cpu": 0.021, "wall": 0.021}, True),
        ({"wall": 0.19}, False),
        ({"wall": 0.21}, True),
    ],
)
def test_a_scorer_that_takes_too_long_loses_its_vote(took: dict[str, float], lost: bool) -> None:
    booth = Booth()
    made = run(_pool(2), profile(("slow", Slow(booth, **took), 1.0)), booth=booth)
    assert booth.failures == ([("slow", "slow")] if lost else [])
    assert made.weights == ({} if lost else {"slow": 1.0})


# Filters


def test_filters_run_in_order_and_the_excluded_are_remembered() -> None:
    rated = profile(
        ("a", Fixed(rest=0.5), 1.0),
        filters={"one": Only("pod-000", "pod-002"), "two": Only("pod-002", "pod-003")},
    )
    made = run(_pool(4), rated)
    assert made.chosen[0].id.name == "pod-002"
    assert made.left.excluded(9) == [
        ("one", 2, ("10.0.0.1:8000", "10.0.0.3:8000")),
        ("two", 1, ("10.0.0.0:8000",)),
    ]
    assert [row.endpoint.name for row in made.table] == ["pod-002"]


@pytest.mark.parametrize(
    ("plugin", "note", "failures"),
    [
        (Only(), "odd left nobody", []),
        (Broken(), "odd failed", [("odd", "raised")]),
        (Says(lambda _: [True]), "odd failed", [("odd", "wrong-shape")]),
    ],
)
def test_a_filter_that_fails_or_leaves_nobody_is_left_out(
    plugin: Any, note: str, failures: list[tuple[str, str]]
) -> None:
    """The other filters still hold."""
    booth = Booth()
    rated = profile(
        ("a", Fixed({"pod-002": 1.0}), 1.0), filters={"odd": plugin, "ok": Only("pod-001")}
    )
    made = run(_pool(3), rated, booth=booth)
    assert made.chosen[0].id.name == "pod-001"
    assert note in made.reasons
    assert booth.failures == failures


def test_where_nobody_has_to_be_chosen_nobody_is() -> None:
    for plugin in (Only(), Broken()):
        rated = profile(filters={"odd": plugin})
        ballot = Booth().ballot
        made = schedule(REQUEST, _pool(3), rated, Random(1), ballot, must=False)
        assert (made.chosen, made.left.excluded(1)) == ((), [("odd", 3, ("10.0.0.0:8000",))])


# Pickers


@pytest.mark.parametrize(
    ("picker", "why"),
    [
        (Broken(), "raised"),
        (Says(lambda _: []), "wrong-shape"),
        (Says(lambda _: [1, 1]), "wrong-shape"),
        (Says(lambda count: [count]), "wrong-shape"),
        (Says(lambda _: [-1]), "wrong-shape"),
        (Says(lambda _: [0.0]), "raised"),
        (Says(lambda _: None), "raised"),
    ],
)
def test_the_best_stands_in_for_a_picker_that_fails(picker: Any, why: str) -> None:
    booth = Booth()
    made = run(_pool(3), profile(("a", Fixed({"pod-002": 1.0}), 1.0), picker=picker), booth=booth)
    assert [one.id.name for one in made.chosen] == ["pod-002"]
    assert booth.failures == [("picker", why)]


def test_a_picker_may_choose_whom_it_likes() -> None:
    rated = profile(("a", Fixed({"pod-002": 1.0}), 1.0), picker=Says(lambda _: [np.int64(1), 0]))
    made = run(_pool(3), rated)
    assert [one.id.name for one in made.chosen] == ["pod-001", "pod-000"]
    assert [row.endpoint.name for row in made.table] == ["pod-001", "pod-000", "pod-002"]


# Reasons and the table


def test_reasons_say_what_was_held_and_how_long_the_queue_was() -> None:
    rated = profile(("a", Fixed(rest=1.0), 1.0))
    warm = run(_pool(1, load=Load(waiting=0), match=Match(512, Source.PRECISE)), rated)
    assert warm.reasons == ("prefix 512/600 tokens precise", "queue 0")
    guessed = run(_pool(1, match=Match(512, Source.PREDICTED, 0.5)), rated)
    assert guessed.reasons[0] == "prefix 512/600 tokens predicted trust 0.50"
    assert run(_pool(1), rated).reasons == ("prefix not held there", "queue not known")


@pytest.mark.parametrize("count", [MAX_ROWS + 1, 20 * MAX_ROWS])
def test_the_score_table_is_bounded_and_holds_the_chosen_and_the_best(count: int) -> None:
    chance = Random(count)
    ratings = {f"pod-{number:03}": chance.random() for number in range(count)}
    rated = profile(("a", Fixed(ratings), 1.0), picker=Says(lambda _: [3]))
    made = run(_pool(count), rated)
    best = sorted((name for name in ratings if name != "pod-003"), key=ratings.__getitem__)[::-1]
    assert [row.endpoint.name for row in made.table] == ["pod-003", *best[: MAX_ROWS - 1]]
    assert len(run(_pool(count), rated, rows=10**9).table) == count


def test_rows_tell_what_the_endpoints_would() -> None:
    pool = _pool(
        2,
        load=Load(waiting=None, reserved_pending=3),
        match=Match(128, Source.PREDICTED, 0.5),
    )
    table = run(pool, profile(("a", Fixed(rest=0.5), 1.0))).table
    assert [row.match for row in table] == [Match(128, Source.PREDICTED, 0.5)] * 2
    assert [row.queue for row in table] == [3, 3]
    assert table[0] is table[0]
    assert [row.address for row in table[1:]] == [table[1].address]
    assert table[-1] == table[1]
    with pytest.raises(IndexError):
        table[2]
    known = run(_pool(1, load=Load(waiting=2, reserved_pending=1)), profile(("a", Fixed(), 1.0)))
    assert known.table[0].queue == 2
    assert run(_pool(1), profile(("a", Fixed(), 1.0))).table[0].queue is None
