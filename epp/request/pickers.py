"""Choose among rated candidates. Pure: the random source is an argument.

Candidates of equal rating are chosen at random: a counter that rotates over changing lists starves
some of them (fault B17).
"""

from collections.abc import Sequence
from typing import Protocol

TIE = 1e-9
"""Ratings closer than this are equal: sums of floats differ in their last bits."""


class Chance(Protocol):
    """A random source, such as `random.Random`."""

    def random(self) -> float:
        """A number in [0, 1)."""


def below(count: int, chance: Chance) -> int:
    """A random index below `count`, which is at least 1."""
    return min(int(chance.random() * count), count - 1)


def best(totals: Sequence[float], count: int, chance: Chance) -> tuple[list[int], int]:
    """Indices of the `count` best, best first, and how many shared the first place."""
    left = list(range(len(totals)))
    chosen: list[int] = []
    tied = 0
    while left and len(chosen) < count:
        top = max([totals[index] for index in left])
        equals = [index for index in left if top - totals[index] <= TIE]
        tied = tied or len(equals)
        taken = equals[below(len(equals), chance)]
        chosen.append(taken)
        left.remove(taken)
    return chosen, tied


def anyone(size: int, count: int, chance: Chance) -> list[int]:
    """Indices of `count` among `size` candidates at random, all equally likely."""
    return best([0.0] * size, count, chance)[0]
