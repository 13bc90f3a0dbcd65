"""The contract notices each breach: plugins that are right but for one thing."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from epp.framework import Candidates, Course, Request, contract

_OTHER = Random(1)


class Scorer:
    """Scores all 0.5, as `score` of a test says otherwise."""

    def __init__(self, score: Callable[[Request, Candidates], Any]) -> None:
        self.score = score


class Filter:
    def __init__(self, keep: Callable[[Request, Candidates], Any]) -> None:
        self.keep = keep


class Picker:
    def __init__(self, pick: Callable[[Sequence[float], Random], Any]) -> None:
        self.pick = pick


async def _later(_: Request, pool: Candidates) -> list[float]:
    return [0.5] * len(pool)


def _forgetful() -> Callable[[Request, Candidates], list[float]]:
    draws = Random(1)
    return lambda _, pool: [draws.random() for _ in pool]


def _looks_much(_: Request, pool: Candidates) -> list[float]:
    return [float(sum(one.load.reserved_requests for one in pool) < 0) for _ in pool]


def test_a_good_scorer_filter_and_picker_pass() -> None:
    asked = Counter[str]()

    def score(_: Request, pool: Candidates) -> Any:
        asked["scorer"] += 1
        return np.full(len(pool), 0.5)

    def keep(_: Request, pool: Candidates) -> Any:
        asked["filter"] += 1
        return [True] * len(pool)

    def pick(totals: Sequence[float], _: Random) -> Any:
        asked["picker"] += 1
        return [totals.index(max(totals))]

    for make in (lambda: Scorer(score), lambda: Filter(keep), lambda: Picker(pick)):
        contract.check(make)
    assert asked.keys() == {"scorer", "filter", "picker"}
    assert min(asked.values()) >= contract.CASES


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (lambda _, pool: [0.5] * max(0, len(pool) - 1), "answers for"),
        (lambda _, pool: [1.5] * len(pool), "not within 0 and 1"),
        (lambda _, pool: [-0.1] * len(pool), "not within 0 and 1"),
        (lambda _, pool: [float("nan")] * len(pool), "not finite"),
        (lambda _, pool: [row / max(len(pool), 1) for row in range(len(pool))], "order counts"),
        (_forgetful(), "the second answer differs"),
        (lambda _, pool: [1.0 - (one.load.kv_usage or 0.0) for one in pool], "an unknown load"),
        (_looks_much, "looks at 300 candidates"),
    ],
)
def test_a_scorer_that_breaks_it_is_told_how(score: Any, said: str) -> None:
    with pytest.raises(contract.Broken, match=said):
        contract.check(lambda: Scorer(score))


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_scorer_that_has_to_be_awaited_is_refused() -> None:
    with pytest.raises(contract.Broken, match="awaited"):
        contract.check(lambda: Scorer(_later))


def test_a_scorer_that_raises_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        contract.check(lambda: Scorer(lambda _, pool: [1 / len(pool)] * len(pool)))


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (lambda _, pool: [0.5] * len(pool), "neither true nor false"),
        (lambda _, pool: [True] * (len(pool) + 1), "answers for"),
        (lambda _, pool: [row == 0 for row in range(len(pool))], "order counts"),
        (_looks_much, "looks at 300"),
    ],
)
def test_a_filter_that_breaks_it_is_told_how(keep: Any, said: str) -> None:
    with pytest.raises(contract.Broken, match=said):
        contract.check(lambda: Filter(keep))


@pytest.mark.parametrize(
    ("pick", "said"),
    [
        (lambda totals, _: [], "nobody is picked"),
        (lambda totals, _: [0, 0], "picked twice"),
        (lambda totals, _: [len(totals)], "no such row"),
        (lambda totals, _: [_OTHER.randrange(len(totals))], "another source"),
    ],
)
def test_a_picker_that_breaks_it_is_told_how(pick: Any, said: str) -> None:
    with pytest.raises(contract.Broken, match=said):
        contract.check(lambda: Picker(pick))


class Decider:
    def __init__(self, *words: Any) -> None:
        self.words = list(words)

    def decide(self, *_: Any) -> Any:
        self.words.append(self.words.pop(0))
        return self.words[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((True,), "not a short word"),
        (("",), "not a short word"),
        (("x" * 41,), "not a short word"),
        (("a\n",), "not a plain word"),
        (("split", "never"), "the second answer differs"),
    ],
)
def test_a_decider_that_breaks_it_is_told_how(words: tuple[Any, ...], said: str) -> None:
    contract.check(lambda: Decider("split"))
    with pytest.raises(contract.Broken, match=said):
        contract.check(lambda: Decider(*words))


class Handler:
    def __init__(self, course: Any, fault: Any = "") -> None:
        self._course, self._fault = course, fault

    def fault(self, profiles: Any, _: Any) -> Any:
        return self._fault if profiles else "no profiles"

    def course(self, _: Request, profiles: Sequence[str]) -> Any:
        return self._course(profiles[0])


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (Handler(lambda first: first), "not a course"),
        (Handler(lambda _: Course(destination="x")), "no profile 'x'"),
        (Handler(lambda first: Course(destination=first, prefill="x")), "no profile 'x'"),
        (Handler(lambda first: Course(destination=first, prefill_decider="x")), "no decider 'x'"),
        (Handler(lambda first: Course(destination=first), fault=None), "no sentence"),
    ],
)
def test_a_handler_that_breaks_it_is_told_how(handler: Handler, said: str) -> None:
    contract.check(lambda: Handler(lambda first: Course(destination=first)))
    with pytest.raises(contract.Broken, match=said):
        contract.check(lambda: handler)


class Marking(Scorer):
    def __init__(self, *marks: tuple[str, str]) -> None:
        super().__init__(lambda _, pool: [0.5] * len(pool))
        self._marks = marks

    def marks(self, *_: Any) -> Any:
        return self._marks


@pytest.mark.parametrize(
    ("mark", "said"),
    [(("X-A", "v"), "no name"), (("x a", "v"), "no name"), (("x-a", "v\r\nx: y"), "not printable")],
)
def test_marks_that_no_answer_can_carry_are_refused(mark: tuple[str, str], said: str) -> None:
    contract.check(lambda: Marking(("x-a", "v")))
    with pytest.raises(contract.Broken, match=said):
        contract.check(lambda: Marking(mark))


class Watching(Scorer):
    def __init__(self) -> None:
        super().__init__(lambda _, pool: [0.5] * len(pool))

    def chosen(self, *_: Any) -> None:
        raise RuntimeError("I did not expect that")

    def removed(self, *_: Any) -> None: ...


def test_a_watcher_that_raises_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="did not expect"):
        contract.check(Watching)


def test_what_is_no_plugin_is_refused() -> None:
    with pytest.raises(contract.Broken, match="none of the methods"):
        contract.check(object)
