"""Choose among rated candidates. Pure: the random source is an argument.

Candidates of equal rating are chosen at random, independent of the order in which they came: a
counter that rotates over changing lists starves some of them (fault B17).
"""

from collections.abc import Sequence
from typing import Protocol

from epp.framework import EndpointId

TIE = 1e-9
"""Ratings closer than this are equal: sums of floats differ in their last bits."""


class Chance(Protocol):
    """A random source, such as `random.Random`."""

    def random(self) -> float:
        """A number in [0, 1)."""


def below(count: int, chance: Chance) -> int:
    """A random index below `count`, which is at least 1."""
    return min(int(chance.random() * count), count - 1)


def best(
    ids: Sequence[EndpointId], totals: Sequence[float], count: int, chance: Chance
) -> tuple[list[int], int]:
    """Indices of the `count` best, best first, and how many shared the first place."""
    left = sorted(range(len(ids)), key=lambda index: (-totals[index], ids[index]))
    chosen: list[int] = []
    tied = 0
    while left and len(chosen) < count:
        top = totals[left[0]]
        equals = 1
        while equals < len(left) and top - totals[left[equals]] <= TIE:
            equals += 1
        tied = tied or equals
        chosen.append(left.pop(below(equals, chance)))
    return chosen, tied


def anyone(ids: Sequence[EndpointId], count: int, chance: Chance) -> list[int]:
    """Indices of `count` candidates at random, all equally likely."""
    return best(ids, [0.0] * len(ids), count, chance)[0]
