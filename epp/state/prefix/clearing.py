"""How old keys are, and which go first where there is no room for all. Pure.

A stamp says when a key was last told of or asked for, in epochs, and within the epoch how near it
is to the head of a prompt that asked for it. Whoever asks for a prompt's tail asks for its head, so
that a head is never older than what follows it and was asked for: of a prompt the tail goes first.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

U16 = NDArray[np.uint16]
Lanes = NDArray[np.intp]

NEARNESS_BITS: Final = 8
NEAREST: Final = (1 << NEARNESS_BITS) - 1
STEPS: Final = 16
"""Of nearness, while the distance from the head doubles."""
RANKS: Final = 1 << 16
EPOCHS: Final = RANKS >> NEARNESS_BITS
"""After so many a key that nobody asked for looks young again."""


class Stamps:
    """The stamps of one epoch."""

    def __init__(self, epoch: int) -> None:
        self._base = (epoch % EPOCHS) << NEARNESS_BITS
        self.told = np.uint16(self._base)
        """Of a key that was told of: nobody knows how far from the head it is."""
        self._asked: U16 = np.zeros(0, np.uint16)

    def asked(self, count: int) -> U16:
        """Of the first `count` keys of a prompt."""
        if count > len(self._asked):
            place = np.arange(1, 2 * count + 1)
            distance = np.floor(STEPS * np.log2(place)).astype(np.int64)
            near = np.maximum(1, NEAREST - distance)
            self._asked = (self._base + near).astype(np.uint16)
        return self._asked[:count]

    def told_again(self, stamps: U16) -> U16:
        """Of keys with these stamps: one of this epoch stays."""
        return np.where(stamps >> NEARNESS_BITS == self.told >> NEARNESS_BITS, stamps, self.told)

    def ages(self, stamps: U16) -> U16:
        """Whole epochs since."""
        return (self.told - stamps + np.uint16(NEAREST)) >> np.uint16(NEARNESS_BITS)

    def ranks(self, stamps: U16) -> U16:
        """The older, and the farther from the head, the smaller."""
        return stamps - np.uint16((self._base + NEAREST + 1) % RANKS)


class Clearing:
    """One look for the oldest keys of a table: all lanes are counted, then the oldest are named,
    some lanes at a time."""

    def __init__(self, wanted: int) -> None:
        """`wanted`: how many are to go."""
        self._wanted = wanted
        self._lane = 0
        self._counts: NDArray[np.int64] | None = np.zeros(RANKS, np.int64)
        self._cut = 0
        """Below that rank all go."""
        self._of_cut = 0
        """Of that very rank so many do, those that come first."""
        self.over = False

    def span(self, budget: int, lanes: int) -> tuple[int, int]:
        """Which lanes to look at next, of a table that has so many."""
        return self._lane, min(lanes, self._lane + max(0, budget))

    def look(self, ranks: U16, stop: int, lanes: int) -> NDArray[np.bool_]:
        """Which of the keys with these ranks are to go, all those up to the lane `stop`."""
        self._lane = stop
        gone: NDArray[np.bool_] = np.zeros(len(ranks), np.bool_)
        if self._counts is None:
            equal = ranks == self._cut
            equal &= equal.cumsum() <= self._of_cut
            self._of_cut -= int(np.count_nonzero(equal))
            np.logical_or(ranks < self._cut, equal, out=gone)
        else:
            found, counts = np.unique(ranks, return_counts=True)
            self._counts[found] += counts
        if stop >= lanes:
            self._turn()
        return gone

    def _turn(self) -> None:
        if self._counts is None:
            self.over = True
            return
        below = self._counts.cumsum()
        wanted = min(self._wanted, int(below[-1]))
        self._cut = int(np.searchsorted(below, wanted))
        self._of_cut = wanted - (int(below[self._cut - 1]) if self._cut else 0)
        self._counts, self._lane = None, 0
