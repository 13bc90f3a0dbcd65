"""Stretches of a prompt that were predicted together.

A prompt is mostly a few runs: what it shares with others, and what is its own. Where a later prompt
leaves a run halfway it is split, and its predictions find both halves.
"""

from bisect import bisect_left
from collections.abc import Iterator
from math import inf

from epp.framework import Incarnation

MARKS = 16
"""Keys that stand for a prompt where there is no room for all."""


class Run:
    """Successive blocks of one prompt, predicted on one endpoint by the same requests."""

    __slots__ = ("before", "inc", "keys", "lapses", "start", "until")

    def __init__(
        self, inc: Incarnation, keys: tuple[int, ...], start: int, lapses: list[float]
    ) -> None:
        self.inc = inc
        self.keys = keys
        """From the first on; the last ones go first."""
        self.start = start
        """How many blocks of the prompt come before it."""
        self.lapses = lapses
        """When each open prediction of it lapses, ascending."""
        self.until = -inf
        """Valid until then, whatever becomes of the open ones."""
        self.before: Run | None = None
        """What was split off its beginning last."""

    def live(self, now: float) -> bool:
        return self.until > now or (bool(self.lapses) and self.lapses[-1] > now)

    def release(self, expires: float, until: float) -> None:
        place = bisect_left(self.lapses, expires)
        if place < len(self.lapses) and self.lapses[place] == expires:
            del self.lapses[place]
        self.until = max(self.until, until)

    def shared(self, keys: tuple[int, ...]) -> int:
        """How many of its keys `keys` begin with. The first is the same."""
        mine = self.keys
        if keys[: len(mine)] == mine:
            return len(mine)
        low, high = 1, min(len(keys), len(mine))
        while low < high:  # a key names all that came before, so that the halves tell
            middle = (low + high + 1) // 2
            if keys[middle - 1] == mine[middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low

    def split(self, size: int) -> "Run":
        """Give up the first `size` blocks to a run of their own. This one stays the older."""
        head = Run(self.inc, self.keys[:size], self.start, self.lapses.copy())
        head.until, head.before = self.until, self.before
        self.keys, self.start, self.before = self.keys[size:], self.start + size, head
        return head


class Prediction:
    """What one request predicts on one endpoint, until it is dropped, confirmed or lapses."""

    __slots__ = ("expires", "inc", "marks", "parts", "size")

    def __init__(
        self, inc: Incarnation, parts: list[Run], keys: tuple[int, ...], expires: float
    ) -> None:
        self.inc = inc
        self.parts = [(run, run.start) for run in parts]
        """With where each began then; what was split off it since is before it."""
        self.size = len(keys)
        """Blocks."""
        self.marks = keys[:: -max(1, -(-len(keys) // MARKS))]
        """Its last key and some before it, as far from each other as makes `MARKS` of them."""
        self.expires = expires

    def runs(self) -> Iterator[Run]:
        for last, start in self.parts:
            run: Run | None = last
            while run is not None and run.start >= start:
                yield run
                run = run.before
