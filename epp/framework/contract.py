"""What every plugin keeps, as checks that anybody can run over a plugin of their own.

    from epp.framework import contract

    def test_my_scorer_keeps_the_contract() -> None:
        contract.check(MyScorer)

`check` recognises the kind by its methods and calls the plugin with many requests and candidates:
none, one, equal ones, unknown and huge loads, odd headers and labels. Each breach raises `Broken`,
an AssertionError, with the case that shows it. `make` builds a fresh plugin each time it is called.

No clock is asked: work is counted in looks at candidates, so that a slow machine breaks nothing.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from .candidates import COLUMNS, Candidates
from .plugins import Course, Follower, Marker, NoCourse, Watcher
from .samples import endpoint, endpoints, request
from .types import Decision, Endpoint, Load, Match, Request, Rung, Stage

CASES = 100
"""Requests that a check makes."""
LOOKS = 16
"""How often a plugin may look at each candidate in one call."""

Make = Callable[[], Any]


class Broken(AssertionError):
    """The plugin does not keep the contract."""


def check(make: Make, *, seed: int = 1, cases: int = CASES) -> None:
    """Run every check that fits the plugin. Raises Broken."""
    plugin = make()
    kinds = [check for method, check in _BY_METHOD.items() if hasattr(plugin, method)]
    _say(bool(kinds), "it has none of the methods " + ", ".join(_BY_METHOD))
    for run in kinds:
        run(make, seed=seed, cases=cases)
    if isinstance(plugin, Watcher):
        check_watcher(make, seed=seed, cases=cases)
    if isinstance(plugin, Marker):
        check_marker(make, seed=seed, cases=cases)


def check_scorer(make: Make, *, seed: int = 1, cases: int = CASES) -> None:
    """One finite number from 0 to 1 for each candidate, the same whenever and in whatever order
    they are asked; an unknown load never better than a known one. Raises Broken."""
    plugin = make()
    for case in _cases(seed, cases):
        scores = _numbers(plugin.score, case)
        for score in scores:
            _say(0.0 <= score <= 1.0, f"a score is not within 0 and 1: {score}", case)
        _say(_numbers(plugin.score, case) == scores, "the second answer differs", case)
        _even(plugin.score, case, scores, Random(seed))
    _check_unknown(plugin)
    _check_work(plugin.score)


def check_filter(make: Make, *, seed: int = 1, cases: int = CASES) -> None:
    """One yes or no for each candidate, the same whenever and in whatever order they are asked.
    Raises Broken."""
    plugin = make()
    for case in _cases(seed, cases):
        kept = _numbers(plugin.keep, case)
        _say(set(kept) <= {0.0, 1.0}, f"an answer is neither true nor false: {kept}", case)
        _say(_numbers(plugin.keep, case) == kept, "the second answer differs", case)
        _even(plugin.keep, case, kept, Random(seed))
    _check_work(plugin.keep)


def check_picker(make: Make, *, seed: int = 1, cases: int = CASES) -> None:
    """Rows of candidates, none twice, at least one, by the given chance alone. Raises Broken."""
    plugin, draws = make(), Random(seed)
    for number in range(cases):
        size = 1 + number % 20
        totals = _totals(draws, size)
        picked = list(plugin.pick(totals, Random(number)))
        _say(bool(picked), f"nobody is picked of {totals}")
        _say(len(set(picked)) == len(picked), f"a row is picked twice: {picked}")
        _say(all(0 <= row < size for row in picked), f"no such row of {size}: {picked}")
        again = list(plugin.pick(totals, Random(number)))
        _say(again == picked, "the same chance gives another pick: is there another source of it?")


def check_decider(make: Make, *, seed: int = 1, cases: int = CASES) -> None:
    """A short stable word for any request and destination. Raises Broken."""
    plugin, draws = make(), Random(seed)
    for number in range(cases):
        asked, destination = request(draws), endpoint(draws, number)
        said = plugin.decide(asked, destination)
        _say(isinstance(said, str) and 0 < len(said) <= 40, f"not a short word: {said!r}")
        _say(said.isascii() and said.isprintable(), f"not a plain word: {said!r}")
        _say(plugin.decide(asked, destination) == said, "the second answer differs")


def check_handler(make: Make, *, seed: int = 1, cases: int = CASES) -> None:
    """A sentence about names, and courses by names that were found good. Raises Broken."""
    plugin, draws = make(), Random(seed)
    for profiles, deciders in _NAMES:
        fault = plugin.fault(frozenset(profiles), frozenset(deciders))
        _say(isinstance(fault, str), f"a fault is no sentence: {fault!r}")
        for _ in range(0 if fault else cases):
            asked = request(draws)
            try:
                course = plugin.course(asked, profiles)
            except NoCourse:
                continue
            _check_course(course, profiles, deciders)


def check_detector(make: Make, *, seed: int = 1, cases: int = CASES) -> None:
    """One finite number of at least 0, the same whenever it is asked; nobody at all is full.
    Raises Broken."""
    plugin = make()
    for _, pool in _cases(seed, cases):
        full = plugin.saturation(pool)
        _say(math.isfinite(full) and full >= 0.0, f"not finite, or below 0: {full}")
        _say(plugin.saturation(pool) == full, "the second answer differs")
    nobody = plugin.saturation(Candidates.of([]))
    _say(nobody >= 1.0, f"a pool of nobody is full, here it is {nobody}")


def check_admitter(make: Make, *, seed: int = 1, cases: int = CASES) -> None:
    """Yes or no, by the given chance alone. Raises Broken."""
    plugin = make()
    for number, (asked, pool) in enumerate(_cases(seed, cases)):
        for priority in (-1, 0, 1):
            request = replace(asked, priority=priority)
            said = plugin.admits(request, pool, Random(number))
            _say(said is True or said is False, f"an answer is neither true nor false: {said!r}")
            again = plugin.admits(request, pool, Random(number))
            _say(again is said, "the same chance gives another answer: is there another source?")


def check_watcher(make: Make, *, seed: int = 1, cases: int = CASES) -> None:
    """It may be told of decisions it never advised in, and of endpoints it never saw. Raises what
    the plugin raises."""
    plugin = make()
    for asked, pool in _cases(seed, cases):
        if len(pool):
            plugin.chosen(asked, _decision(asked, pool))
            if isinstance(plugin, Follower):
                plugin.served(asked, pool[0], pool[-1])
            plugin.removed([pool[0].id])
        plugin.removed([])


def check_marker(make: Make, *, seed: int = 1, cases: int = CASES) -> None:
    """Headers that an answer can carry. Raises Broken."""
    plugin = make()
    for asked, pool in _cases(seed, cases):
        if not len(pool):
            continue
        if isinstance(plugin, Watcher):
            plugin.chosen(asked, _decision(asked, pool))
        for name, value in plugin.marks(asked, pool[0]):
            good = name == name.lower() and name.replace("-", "").replace("_", "").isalnum()
            _say(good and name.isascii(), f"no name of a header: {name!r}")
            _say(value.isascii() and value.isprintable(), f"{name}: not printable: {value!r}")


_BY_METHOD: dict[str, Callable[..., None]] = {
    "score": check_scorer,
    "keep": check_filter,
    "pick": check_picker,
    "decide": check_decider,
    "course": check_handler,
    "saturation": check_detector,
    "admits": check_admitter,
}

_NAMES: Sequence[tuple[Sequence[str], Sequence[str]]] = (
    ((), ()),
    (("default",), ()),
    (("decode",), ()),
    (("decode", "prefill"), ("prefix-based-pd-decider",)),
    (("decode", "prefill", "encode", "default"), ("always-disagg-pd-decider",)),
)


def _cases(seed: int, count: int) -> Iterator[tuple[Request, Candidates]]:
    """Sizes 0 to 12, each with the same one twice at times."""
    draws = Random(seed)
    for number in range(count):
        asked, pool = request(draws, number), endpoints(draws, number % 13)
        if number % 3 == 0 and pool:
            asked = replace(asked, peer=endpoint(draws, number))
        yield asked, Candidates.of(pool)


def _numbers(method: Callable[..., Any], case: tuple[Request, Candidates]) -> list[float]:
    answer = method(*case)
    _say(not inspect.isawaitable(answer), "the answer has to be awaited", case)
    found = [float(each) for each in answer]
    what = f"{len(found)} answers for {len(case[1])} candidates"
    _say(len(found) == len(case[1]), what, case)
    _say(all(map(math.isfinite, found)), f"not finite: {found}", case)
    return found


def _even(
    method: Callable[..., Any],
    case: tuple[Request, Candidates],
    straight: Sequence[float],
    draws: Random,
) -> None:
    """The order of the candidates changes nothing, nor does it that they are a part of others."""
    asked, pool = case
    order = list(range(len(pool)))
    draws.shuffle(order)
    shuffled = _numbers(method, (asked, pool.take(order)))
    expected = [straight[row] for row in order]
    _say(shuffled == expected, f"order counts: {shuffled} for {expected}", case)


def _check_unknown(plugin: Any) -> None:
    """Where all else is equal, who says nothing is not better than a busy one that speaks."""
    draws = Random(0)
    silent = replace(endpoint(draws, 0), labels={}, load=Load(), match=Match())
    known = Load(waiting=3, running=5, kv_usage=0.9, active_blocks=90.0, total_blocks=100)
    speaks = replace(endpoint(draws, 1), labels={}, load=known, match=Match(), speeds=silent.speeds)
    asked = replace(request(draws), headers={}, prompt_tokens=640, keys=tuple(range(10)))
    first, second = _numbers(plugin.score, (asked, Candidates.of([silent, speaks])))
    _say(first <= second, f"an unknown load scores {first}, a known one {second}")


def _check_work(method: Callable[..., Any]) -> None:
    draws, looks = Random(0), [0]
    pool = endpoints(draws, 300)

    def at(row: int) -> Endpoint:
        looks[0] += 1
        return pool[row]

    class Counted(Candidates):
        def __getitem__(self, index: Any) -> Any:
            looks[0] += 1
            return super().__getitem__(index)

    made = Candidates.of(pool)
    columns = {name: np.array(made.column(name)) for name in COLUMNS}
    counted = Counted(len(pool), at, columns, ids=made.ids, labels=made.labels)
    method(request(draws), counted)
    most = LOOKS * len(pool)
    _say(looks[0] <= most, f"{looks[0]} looks at {len(pool)} candidates; {most} are enough")


def _check_course(course: Any, profiles: Sequence[str], deciders: Sequence[str]) -> None:
    _say(isinstance(course, Course), f"not a course: {course!r}")
    _say(course.destination in profiles, f"there is no profile {course.destination!r}")
    for profile in filter(None, (course.prefill, course.encode)):
        _say(profile in profiles, f"there is no profile {profile!r}")
    for decider in filter(None, (course.prefill_decider, course.encode_decider)):
        _say(decider in deciders, f"there is no decider {decider!r}")


def _totals(draws: Random, size: int) -> list[float]:
    kind = draws.randrange(4)
    if kind == 0:
        return [0.0] * size
    if kind == 1:
        return [draws.choice((0.0, 0.5, 1.0)) for _ in range(size)]
    return [draws.uniform(0.0, 10.0 ** draws.randint(-9, 9)) for _ in range(size)]


def _decision(asked: Request, pool: Candidates) -> Decision:
    return Decision(
        request_id=asked.id,
        chosen=tuple(pool[:2]),
        rung=Rung.PREDICTED,
        reasons=(),
        prefilling=Stage(chosen=tuple(pool[2:3])),
        encoding=Stage(chosen=tuple(pool[3:5])),
    )


def _say(kept: bool, what: str, case: tuple[Request, Candidates] | None = None) -> None:
    if not kept:
        asked = "" if case is None else f"\n{case[0]}\n" + "\n".join(map(str, case[1]))
        raise Broken(what + asked)
