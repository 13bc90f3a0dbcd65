"""Which endpoints should hold which keys: the index behind predictions.

A key maps to an integer whose bits are the endpoints, so that a lookup walks the keys of a prompt
once for all candidates: it ands the bits and stops where nobody is left. Whoever has a key of a
prompt has all keys before it, so that the walk goes in leaps from one change to the next. For some
ten thousand pairs that change with every request, a few keys at a time, this takes less time than
`Holders`, which is for millions that come in batches, and it takes ten times the memory.

An incarnation has a slot (its bit). To clear one its slot is retired, which is one step however
much it held: nobody's lookup asks for that bit any more. Whoever knows the keys behind it takes
them away later (`sweep`), and only then gives the slot to somebody else (`free`).
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from epp.framework import Incarnation

from .walk import Depths

FEW = 24
"""Up to so many endpoints are gone through one by one; more cost less as an array of bits."""


class Bits:
    """Who has which keys. Storing and removing are idempotent.

    Keys are stored after those that come before them in their prompt, and removed before them.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        """Key: bits of the slots that hold it, retired ones among them until they are swept."""
        self._slots: dict[Incarnation, int] = {}
        self._opened = 0
        """Slots that there are, in use or not."""
        self._free: list[int] = []
        self._asked: tuple[Incarnation, ...] | None = None
        """Who was asked for the last time."""
        self._wanted = 0
        """Their bits."""
        self._places: NDArray[np.intp] = np.zeros(0, np.intp)
        """Their slots, -1 for who has none."""

    def __len__(self) -> int:
        """Keys, retired ones among them until they are swept."""
        return len(self._holders)

    def store(self, inc: Incarnation, keys: Sequence[int]) -> None:
        """`inc` has `keys` too."""
        slot = self._slots.get(inc)
        if slot is None:
            slot = self._open(inc)
        holders, bit = self._holders, 1 << slot
        known = holders.get
        if keys and known(keys[0]) is None:  # then nobody has the others either
            holders.update(dict.fromkeys(keys, bit))
            return
        for key in keys:
            others = known(key)
            holders[key] = bit if others is None else others | bit

    def remove(self, inc: Incarnation, keys: Sequence[int]) -> None:
        """`inc` no longer has `keys`; those that it didn't are passed over."""
        slot = self._slots.get(inc)
        if slot is not None:
            for key in keys:
                self.sweep(slot, key)

    def retire(self, inc: Incarnation) -> int | None:
        """`inc` has nothing. Returns its slot, from which its keys are to be swept; None: none."""
        self._asked = None
        return self._slots.pop(inc, None)

    def sweep(self, slot: int, key: int) -> None:
        """Take a key from a slot, if it has it."""
        bits = self._holders.get(key, 0)
        left = bits & ~(1 << slot)
        if left:
            self._holders[key] = left
        elif bits:
            del self._holders[key]

    def free(self, slot: int) -> None:
        """All keys of a retired slot have been swept."""
        self._free.append(slot)

    def depths(self, keys: Sequence[int], incs: tuple[Incarnation, ...]) -> Depths:
        """How many leading `keys` each of `incs` has, in their order. Faster when `incs` is the
        same tuple as the last time."""
        if self._asked is not incs:
            self._ask(incs)
        by_slot = np.zeros(self._opened + 1, np.int64)  # the last stands for who has no slot
        for bits, depth in self._runs(keys, self._wanted):
            _spread(by_slot, bits, depth)
        return by_slot[self._places]

    def _runs(self, keys: Sequence[int], alive: int) -> Iterator[tuple[int, int]]:
        """Slots that have equally many of the keys, as bits, and how many that is; never none."""
        depth = 0
        while alive and depth < len(keys):
            still = self._holders.get(keys[depth], 0) & alive
            if still == alive:
                depth = self._leap(keys, depth, alive)
                continue
            if depth:
                yield alive ^ still, depth
            alive = still
        if alive and keys:
            yield alive, len(keys)

    def _leap(self, keys: Sequence[int], held: int, alive: int) -> int:
        """The first key after `held`, which all of them have, that not all have; or the end."""
        holders = self._holders.get
        step, end = 1, len(keys)
        while held + step < end:
            if holders(keys[held + step], 0) & alive != alive:
                end = held + step
                break
            held += step
            step *= 2
        while end - held > 1:
            middle = (held + end) // 2
            if holders(keys[middle], 0) & alive == alive:
                held = middle
            else:
                end = middle
        return end

    def _open(self, inc: Incarnation) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._opened
            self._opened += 1
        self._slots[inc] = slot
        self._asked = None
        return slot

    def _ask(self, incs: tuple[Incarnation, ...]) -> None:
        # Hashing an incarnation costs as much as the lookup of some keys. A tuple doesn't change,
        # and we hold it, so that its id isn't reused.
        slots = [self._slots.get(inc, -1) for inc in incs]
        self._asked, self._places = incs, np.array(slots, np.intp)
        self._wanted = sum({1 << slot for slot in slots if slot >= 0})


def _spread(by_slot: Depths, bits: int, depth: int) -> None:
    if bits.bit_count() > FEW:
        packed = np.frombuffer(bits.to_bytes(-(-bits.bit_length() // 8), "little"), np.uint8)
        mask = np.unpackbits(packed, bitorder="little").view(np.bool_)
        by_slot[: len(mask)][mask[: len(by_slot)]] = depth
        return
    while bits:
        low = bits & -bits
        by_slot[low.bit_length() - 1] = depth
        bits ^= low
