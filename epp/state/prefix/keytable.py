"""A hash table of keys in flat arrays, for millions of them, read and changed many at a time.

A key stands in one of two buckets of eight lanes, so that a batch of any size is found in two
looks. The second bucket takes a key only where the first is nearly full, which keeps the fullest
buckets from overflowing up to three quarters of all lanes.

The table grows by linear hashing: while keys come in, some buckets at a time are split in two, so
that nobody ever waits for a whole table to move. A key moves to a higher lane then, never to a
lower one; whoever goes through the lanes upward sees each that stays.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from epp.framework import Mask

Lanes = NDArray[np.intp]
"""Places in the table."""
U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]

LANES: Final = 8
"""Of one bucket: 64 bytes of keys, which is one cache line."""
NEARLY_FULL: Final = 6
FULL: Final = 0.7
"""Share of lanes in use from which on the table grows to twice its size."""
THIN: Final = 0.25
"""Below it a key without a place is refused: only keys made to collide have none then."""
SMALLEST: Final = 16
"""Buckets of an empty table; a power of two."""
FEW: Final = 16
"""Keys that a walk looks up in their second bucket first: it mostly ends with one of them."""
SPLITS: Final = 2
"""Buckets that are split for each key that comes in while the table grows. So the last ones are
split before they overflow."""
_UNTIMED: Final = np.uint16(0)
_ZERO: Final = np.uint64(0x6A09E667F3BCC909)
"""What stands for the key 0, which marks an empty lane."""
# As arrays: a step with a number of numpy's takes half as long again.
_MIX: Final = np.array(0x9E3779B97F4A7C15, np.uint64)
_HALF: Final = np.array(32, np.uint64)
_OTHER: Final = np.array(29, np.uint64)


class KeyTable:
    """Keys, and for each two numbers, of 32 and of 16 bits (`refs` and `stamps`)."""

    def __init__(self) -> None:
        self._level = SMALLEST
        """Buckets when this round of splits began."""
        self._split = 0
        """Buckets that were split in this round."""
        self._size = 0
        # No view of these may outlive a call: they are resized in place.
        self._keys = np.zeros(SMALLEST * LANES, np.uint64)
        self.refs = np.zeros(SMALLEST * LANES, np.uint32)
        self.stamps = np.zeros(SMALLEST * LANES, np.uint16)
        """By lane; whatever the owner put there, and of no meaning where the lane is empty."""

    def __len__(self) -> int:
        """Keys."""
        return self._size

    @property
    def lanes(self) -> int:
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self.refs.nbytes + self.stamps.nbytes

    def find(self, keys: U64) -> Lanes:
        """The lane of each key, -1 for one that isn't there."""
        keys = _named(keys)
        first, second = self._homes(keys)
        where, away = self._look(first, keys)
        if len(away):
            there, absent = self._look(second[away], keys[away])
            there[absent] = -1
            where[away] = there
        return where

    def leading(self, keys: U64) -> Lanes:
        """The lanes of the keys before the first that isn't there."""
        keys = _named(keys)
        mixed = keys * _MIX
        where, away = self._look(self._bucket(_first(mixed)), keys)
        done, batch = 0, FEW
        while done < len(away):
            some = away[done : done + batch]
            where[some], absent = self._look(self._bucket(_second(mixed[some])), keys[some])
            if len(absent):
                return where[: some[absent[0]]]
            done, batch = done + batch, len(keys)
        return where

    def add(self, keys: U64, refs: U32, stamp: np.uint16 = _UNTIMED) -> int:
        """Put in keys that are not there, no two of them the same, each with its reference;
        returns how many had a place."""
        while self._split or self._size + len(keys) > FULL * self._level * LANES:
            level = self._level
            self._split_some(SPLITS * len(keys))
            if self._level == level:
                break
        before = self._size
        keys = _named(keys)
        while len(keys):
            some = max(SMALLEST, self.lanes // 32)
            left = self._place(keys[:some], refs[:some], stamp)
            if len(left) == len(keys[:some]):
                if self._size < THIN * self.lanes:
                    break
                self._split_some(self._level // 32)
            if not len(left):
                keys, refs = keys[some:], refs[some:]
                continue
            keys = np.concatenate((keys[left], keys[some:]))
            refs = np.concatenate((refs[left], refs[some:]))
        return self._size - before

    def drop(self, lanes: Lanes) -> None:
        """Take out the keys in these lanes, all of them in use."""
        self._keys[lanes] = 0
        self._size -= len(lanes)

    def used(self, start: int, stop: int) -> Lanes:
        """Lanes in use among those from `start` to before `stop`."""
        return self._keys[start:stop].nonzero()[0] + start

    def thinned(self) -> "KeyTable":
        """Itself, or a smaller one of the same where most lanes are empty."""
        if self.lanes <= SMALLEST * LANES or self._size > self.lanes // 16:
            return self
        other = KeyTable()
        lanes = self.used(0, self.lanes)
        stamps, keys = self.stamps[lanes], self._keys[lanes]
        other.add(keys, self.refs[lanes])
        other.stamps[other.find(keys)] = stamps
        return other

    # Mechanics

    def _homes(self, keys: U64) -> tuple[Lanes, Lanes]:
        mixed = keys * _MIX
        return self._bucket(_first(mixed)), self._bucket(_second(mixed))

    def _bucket(self, mixed: U64) -> Lanes:
        bits = mixed.view(np.int64)
        small = bits & (self._level - 1)
        if not self._split:
            return small
        return np.where(small < self._split, bits & (2 * self._level - 1), small)

    def _look(self, buckets: Lanes, keys: U64) -> tuple[Lanes, Lanes]:
        """The lanes of keys that stand in these buckets, and which keys do not: their lanes mean
        nothing."""
        same = self._keys.reshape(-1, LANES).take(buckets, axis=0) == keys[:, None]
        where = (buckets << 3) + same.argmax(axis=1)
        return where, (self._keys.take(where) != keys).nonzero()[0]

    def _place(self, keys: U64, refs: U32, stamp: np.uint16) -> Lanes:
        """Put in as many as find an empty lane at once, one in a bucket; returns the places of the
        others."""
        rows = self._keys.reshape(-1, LANES)
        bucket, second = self._homes(keys)
        taken = rows.take(bucket, axis=0) != 0
        fill = _counted(taken)
        crowded = (fill >= NEARLY_FULL).nonzero()[0]
        if len(crowded):
            other = rows.take(second[crowded], axis=0) != 0
            emptier = _counted(other) < fill[crowded]
            moved = crowded[emptier]
            bucket[moved], taken[moved] = second[moved], other[emptier]
        where = (bucket << 3) + taken.argmin(axis=1)
        empty = (self._keys.take(where) == 0).nonzero()[0]
        self._keys[where[empty]] = keys[empty]
        # Of several that came to one lane the last has it.
        placed: Mask = self._keys.take(where) == keys
        lanes = where[placed]
        self.refs[lanes] = refs[placed]
        self.stamps[lanes] = stamp
        self._size += len(lanes)
        return (~placed).nonzero()[0]

    def _split_some(self, count: int) -> None:
        """Split the next buckets of this round."""
        level, start = self._level, self._split
        stop = min(level, start + max(SMALLEST, count))
        lanes = slice(start * LANES, stop * LANES)
        homes = np.arange(start, stop).repeat(LANES)
        mixed = self._keys[lanes] * _MIX
        by_first = _first(mixed).view(np.int64)
        by_second = _second(mixed).view(np.int64)
        by = np.where(by_first & (level - 1) == homes, by_first, by_second)
        moves = (by & level != 0) & (self._keys[lanes] != 0)
        for column in (self._keys, self.refs, self.stamps):
            moved = np.where(moves, column[lanes], 0)
            column.resize((level + stop) * LANES, refcheck=False)
            column[(level + start) * LANES :] = moved
        self._keys[lanes][moves] = 0
        self._split = stop
        if stop == level:
            self._level, self._split = 2 * level, 0


def _counted(marks: Mask) -> NDArray[np.uint8]:
    """Of each row of `LANES` marks, how many are set."""
    return np.bitwise_count(marks.view(np.uint64)).ravel()


def _first(mixed: U64) -> U64:
    return mixed ^ mixed >> _HALF


def _second(mixed: U64) -> U64:
    return (mixed ^ mixed >> _OTHER) * _MIX >> _HALF


def _named(keys: U64) -> U64:
    return keys if np.count_nonzero(keys) == len(keys) else np.where(keys == 0, _ZERO, keys)
