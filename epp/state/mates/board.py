"""The sums that one worker has heard of the others, as long as they may be believed. Pure."""

from collections.abc import Callable

from epp.state.sums import LEASE_S, ReplicaSums

MOST_NAMES = 256
"""Workers, and those that they replaced within one lease; more are not heard."""


class Board:
    """By the name of a worker's life; what is not said again is over after its lease."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[str, tuple[ReplicaSums, float]] = {}

    def take(self, sums: ReplicaSums) -> None:
        if sums.replica in self._said or len(self._said) < MOST_NAMES:
            self._said[sums.replica] = sums, self._clock() + LEASE_S

    def believed(self) -> list[ReplicaSums]:
        now = self._clock()
        for name in [name for name, (_, until) in self._said.items() if until <= now]:
            del self._said[name]
        return [sums for sums, _ in self._said.values()]
