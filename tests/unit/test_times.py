"""The limits of one handoff, on one timer."""

import asyncio
from typing import cast

from sidecar.transfer.times import Times


class Timer:
    def __init__(self, at: float) -> None:
        self.at = at
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """A loop whose time a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[Timer, object]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: object) -> Timer:
        timer = Timer(at)
        self.timers.append((timer, call))
        return timer

    def to(self, now: float) -> None:
        while True:
            due = [one for one in self.timers if not one[0].cancelled and one[0].at <= now]
            if not due:
                break
            timer, call = min(due, key=lambda one: one[0].at)
            self.timers.remove((timer, call))
            self.now = timer.at
            assert callable(call)
            call()
        self.now = now


def made() -> tuple[Loop, Times, list[str]]:
    loop = Loop()
    return loop, Times(cast("asyncio.AbstractEventLoop", loop)), []


def test_each_limit_is_told_at_its_time_and_once() -> None:
    loop, times, told = made()
    for name, within_s in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        times.set(name, within_s, lambda name=name: told.append(name))  # type: ignore[misc]
    loop.to(0.9)
    assert told == []
    loop.to(2.5)
    assert told == ["a", "b"]
    loop.to(9.0)
    assert told == ["a", "b", "c"]


def test_a_limit_that_is_put_off_or_dropped_is_not_told_before() -> None:
    loop, times, told = made()
    times.set("a", 1.0, lambda: told.append("a"))
    times.set("b", 1.5, lambda: told.append("b"))
    times.set("a", 5.0, lambda: told.append("later"))
    times.drop("b")
    loop.to(4.9)
    assert told == []
    loop.to(5.1)
    assert told == ["later"]


def test_one_timer_serves_all_and_none_is_left() -> None:
    loop, times, told = made()
    for name in "abc":
        times.set(name, 3.0, lambda: told.append("late"))
    assert len(loop.timers) == 1
    times.stop()
    loop.to(9.0)
    assert (told, [timer.cancelled for timer, _ in loop.timers]) == ([], [True])


def test_what_is_told_may_set_and_drop_limits() -> None:
    loop, times, told = made()

    def first() -> None:
        told.append("a")
        times.drop("b")
        times.set("c", 1.0, lambda: told.append("c"))

    times.set("a", 1.0, first)
    times.set("b", 1.0, lambda: told.append("b"))
    loop.to(9.0)
    assert told == ["a", "c"]
