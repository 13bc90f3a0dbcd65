"""How long engines take from token to token, by their own pages: for those without a sidecar. Pure.

A page tells totals since the engine's start. What they grew by over some time is a sample of that
time's steps, and goes with what was in use meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass

from epp.framework import Incarnation

from .metrics_page import StepTotals

LEAST_S = 1.0
"""Time that a sample takes: pages are read more often."""
LEAST_STEPS = 16
"""Steps of a sample; fewer are waited for."""
MOST_S = 10.0
"""A sample that takes longer says little of what was in use meanwhile."""

Observed = Callable[[Incarnation, int, float, float, float], None]
"""Told of a life, the steps of a sample, their seconds together, how long it took, and its end."""


@dataclass(frozen=True, slots=True)
class _Mark:
    totals: StepTotals
    at: float


class Steps:
    """Tells `observed` a sample whenever a life has made one."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._marks: dict[Incarnation, _Mark] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def page(self, inc: Incarnation, totals: StepTotals | None, now: float) -> None:
        """What this life's page says. Totals that fell, or are gone, begin anew."""
        if totals is None:
            self.forget(inc)
            return
        mark = self._marks.get(inc)
        if mark is None:
            self._marks[inc] = _Mark(totals, now)
            return
        steps = totals.count - mark.totals.count
        seconds = totals.seconds - mark.totals.seconds
        lasted = now - mark.at
        if 0 < steps < LEAST_STEPS and lasted <= MOST_S and seconds >= 0:
            return
        if steps >= LEAST_STEPS and lasted < LEAST_S:
            return
        self._marks[inc] = _Mark(totals, now)
        if steps >= LEAST_STEPS and seconds > 0 and lasted <= MOST_S:
            self._observed(inc, round(steps), seconds, lasted, now)

    def forget(self, inc: Incarnation) -> None:
        """That life is over."""
        self._marks.pop(inc, None)
