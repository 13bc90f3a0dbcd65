"""Which blocks engines should soon hold, by the word of other replicas. Pure.

A prompt that another replica sent shows in no event until it is computed, which takes seconds for a
long one. So replicas tell each other some keys of the prompts on their way. A key names all that
came before it, so that one of them that a request has says how much of it will be there. What they
say replaces what they said before, and is over with their lease.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from epp.framework import EndpointId, Incarnation

from .prefix import Depths
from .sums import ReplicaSums


class Foretold:
    """The keys that all others told last."""

    def __init__(self) -> None:
        self._told: dict[Incarnation, set[int]] = {}
        self._size = 0
        self._asked: tuple[Incarnation, ...] | None = None
        self._rows: dict[int, list[int]] = {}
        """By key: rows of those that were asked for last."""

    def __len__(self) -> int:
        """(endpoint, key) pairs."""
        return self._size

    def replace(
        self,
        others: Collection[ReplicaSums],
        life_of: Callable[[EndpointId], Incarnation | None],
    ) -> None:
        """`life_of`: None for who is no member. What was told of another life is left out."""
        told: dict[Incarnation, set[int]] = {}
        for replica in others:
            for one in replica.sums:
                inc = life_of(one.incarnation.endpoint) if one.keys else None
                if inc is not None and one.incarnation.start_ms in {0, inc.start_ms}:
                    told.setdefault(inc, set()).update(one.keys)
        if told != self._told:
            self._told, self._asked = told, None
            self._size = sum(map(len, told.values()))

    def depths(self, keys: Sequence[int], lives: tuple[Incarnation, ...]) -> Depths:
        """How many leading `keys` each of `lives` will hold, as far as that was told."""
        if self._asked is not lives:
            self._ask(lives)
        found = np.zeros(len(lives), np.int64)
        rows = self._rows
        for depth, key in enumerate(keys, 1):
            if key in rows:
                found[rows[key]] = depth
        return found

    def _ask(self, lives: tuple[Incarnation, ...]) -> None:
        self._asked, self._rows = lives, {}
        for row, inc in enumerate(lives):
            for key in self._told.get(inc, ()):
                self._rows.setdefault(key, []).append(row)
