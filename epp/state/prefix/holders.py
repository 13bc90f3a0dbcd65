"""Which endpoints hold which own blocks, by their engines' word.

A key maps to an integer whose bits are the endpoints that hold it, so that a lookup walks the keys
of a prompt once for all candidates: it ands the bits and stops where nobody is left.

An incarnation has a slot (its bit). To clear one its slot is retired, which is one step however
much it held: nobody's lookup asks for that bit any more. The keys behind it are swept away later in
bounded slices, and only then is the slot given to somebody else.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from epp.framework import Incarnation, Mask

SWEEP_PER_KEY = 2
"""Retired keys swept for each key stored or removed, so that churn alone bounds the memory."""
FEW = 24
"""Up to so many endpoints are gone through one by one; more cost less as an array of bits."""

Depths = NDArray[np.int64]
Keys = Sequence[int] | NDArray[np.uint64]
"""Of own blocks, in the order of their prompt."""


class Holders:
    """Who holds which keys on one tier. Every change is idempotent.

    One more entry costs about 100 bytes where another endpoint has the key, else 200.
    """

    def __init__(self, max_blocks_per_endpoint: int) -> None:
        """Blocks beyond `max_blocks_per_endpoint` are refused; the oldest claims stay."""
        if max_blocks_per_endpoint <= 0:
            raise ValueError("max_blocks_per_endpoint must be positive")
        self._limit = max_blocks_per_endpoint
        self._holders: dict[int, int] = {}
        """Key: bits of the slots that hold it, retired ones among them until they are swept."""
        self._slots: dict[Incarnation, int] = {}
        self._owners: list[Incarnation | None] = []
        """Slot: who has it; None while it is retired or free."""
        self._held: list[set[int]] = []
        """Slot: its keys."""
        self._retired: deque[int] = deque()
        self._free: list[int] = []
        self._asked: tuple[Collection[Incarnation], int] | None = None
        """Who was asked for the last time, and their bits."""
        self._asked_slots: NDArray[np.intp] | None = None
        """Their slots, once they are needed."""
        self.refused = 0
        """Blocks over the limit of their endpoint, not stored."""

    def __len__(self) -> int:
        """Keys in the index, retired ones among them until they are swept."""
        return len(self._holders)

    def __contains__(self, inc: Incarnation) -> bool:
        return inc in self._slots

    def __iter__(self) -> Iterator[Incarnation]:
        return iter(self._slots)

    @property
    def retired_blocks(self) -> int:
        """Blocks that still wait to be swept."""
        return sum(len(self._held[slot]) for slot in self._retired)

    @property
    def slots(self) -> int:
        """Bits in use: endpoints that hold blocks, and retired ones."""
        return len(self._owners) - len(self._free)

    def blocks(self, inc: Incarnation) -> int:
        slot = self._slots.get(inc)
        return 0 if slot is None else len(self._held[slot])

    def store(self, inc: Incarnation, keys: Keys) -> None:
        """`inc` holds `keys` too."""
        self.sweep(SWEEP_PER_KEY * len(keys))
        if not len(keys):
            return
        keys = _ints(keys)
        slot = self._slots.get(inc)
        if slot is None:
            slot = self._open(inc)
        held, holders, bit = self._held[slot], self._holders, 1 << slot
        new = keys
        if not held.isdisjoint(keys) or len(held) + len(keys) > self._limit:
            new = self._welcome(held, keys)
        held.update(new)
        known = holders.get
        for key in new:
            holders[key] = known(key, 0) | bit

    def remove(self, inc: Incarnation, keys: Keys) -> None:
        """`inc` no longer holds `keys`; those that it didn't are passed over."""
        self.sweep(SWEEP_PER_KEY * len(keys))
        slot = self._slots.get(inc)
        if slot is None:
            return
        held = self._held[slot]
        for key in _ints(keys):
            if key in held:
                held.remove(key)
                self._drop_bit(key, slot)

    def clear(self, inc: Incarnation) -> None:
        """`inc` holds nothing. The cost doesn't depend on how much it held."""
        slot = self._slots.pop(inc, None)
        if slot is not None:
            self._owners[slot] = None
            self._asked = None
            self._retired.append(slot)

    def lookup(self, keys: Keys, incs: Collection[Incarnation]) -> dict[Incarnation, int]:
        """How many leading `keys` each of `incs` holds. Who holds not even the first is absent.

        Faster when `incs` is the same tuple as the last time.
        """
        found: dict[Incarnation, int] = {}
        for bits, depth in self._runs(keys, self._bits_of(incs)):
            _note(found, self._owners, bits, depth)
        return found

    def depths(self, keys: Keys, incs: tuple[Incarnation, ...]) -> Depths:
        """The same as one number for each of `incs`, in their order; 0 where none is held."""
        alive = self._bits_of(incs)
        by_slot = np.zeros(len(self._owners) + 1, np.int64)  # the last stands for who has no slot
        for bits, depth in self._runs(keys, alive):
            _spread(by_slot, bits, depth)
        if self._asked_slots is None:
            slots = [self._slots.get(inc, -1) for inc in incs]
            self._asked_slots = np.array(slots, np.intp)
        return by_slot[self._asked_slots]

    def held(self, key: int, incs: tuple[Incarnation, ...]) -> Mask:
        """Which of `incs` hold `key`."""
        bits = self._holders.get(key, 0)
        return np.array(
            [bits >> self._slots.get(inc, -1) & 1 if inc in self._slots else 0 for inc in incs],
            np.bool_,
        )

    def _runs(self, keys: Keys, alive: int) -> Iterator[tuple[int, int]]:
        """Slots that hold equally many of the keys, as bits, and how many that is; never none."""
        holders = self._holders.get
        for depth, key in enumerate(_ints(keys)):
            if not alive:
                return
            still = holders(key, 0) & alive
            if still != alive:
                if depth:
                    yield alive ^ still, depth
                alive = still
        if alive and len(keys):
            yield alive, len(keys)

    def sweep(self, budget: int) -> int:
        """Take away up to `budget` retired blocks; returns how many that were."""
        swept = 0
        while self._retired and swept < budget:
            slot = self._retired[0]
            held = self._held[slot]
            while held and swept < budget:
                self._drop_bit(held.pop(), slot)
                swept += 1
            if not held:
                self._retired.popleft()
                self._held[slot] = set()
                self._free.append(slot)
        return swept

    def _welcome(self, held: set[int], keys: Keys) -> list[int]:
        """Those that are not held yet, as far as there is room; the others are counted."""
        new: dict[int, None] = {}
        for key in keys:
            if key in held or key in new:
                continue
            if len(held) + len(new) < self._limit:
                new[key] = None
            else:
                self.refused += 1
        return list(new)

    def _open(self, inc: Incarnation) -> int:
        if self._free:
            slot = self._free.pop()
            self._owners[slot] = inc
        else:
            slot = len(self._owners)
            self._owners.append(inc)
            self._held.append(set())
        self._slots[inc] = slot
        self._asked = None
        return slot

    def _drop_bit(self, key: int, slot: int) -> None:
        bits = self._holders[key] & ~(1 << slot)
        if bits:
            self._holders[key] = bits
        else:
            del self._holders[key]

    def _bits_of(self, incs: Collection[Incarnation]) -> int:
        # Hashing an incarnation costs as much as the lookup of some keys. Only a tuple can be
        # recognised by identity: it doesn't change, and we hold it, so its id isn't reused.
        if self._asked is not None and self._asked[0] is incs:
            return self._asked[1]
        self._asked, self._asked_slots = None, None
        bits = 0
        for inc in incs:
            slot = self._slots.get(inc)
            if slot is not None:
                bits |= 1 << slot
        if isinstance(incs, tuple):
            self._asked = (incs, bits)
        return bits


def _ints(keys: Keys) -> Sequence[int]:
    return keys.tolist() if isinstance(keys, np.ndarray) else keys


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


def _note(
    found: dict[Incarnation, int], owners: Sequence[Incarnation | None], bits: int, depth: int
) -> None:
    while bits:
        low = bits & -bits
        owner = owners[low.bit_length() - 1]
        if owner is not None:
            found[owner] = depth
        bits ^= low
