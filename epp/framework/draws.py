"""Draws without bias, for plugins that leave something to chance."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Chance(Protocol):
    """A random source, such as `random.Random`."""

    def random(self) -> float:
        """A number in [0, 1)."""


def sample(items: Sequence[T], count: int, chance: Chance) -> list[T]:
    """`count` of the items in random order, all of them where there are fewer.

    Every choice and every order is equally likely.
    """
    left = list(items)
    wanted = min(max(count, 0), len(left))
    for place in range(wanted):
        drawn = place + min(int(chance.random() * (len(left) - place)), len(left) - place - 1)
        left[place], left[drawn] = left[drawn], left[place]
    return left[:wanted]
