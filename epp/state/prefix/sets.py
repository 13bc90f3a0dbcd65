"""Who holds a key, as small numbers (slots), for millions of keys at a time.

A reference of 32 bits names the holders of a key. Most keys have one holder: the reference is its
slot. Several stand in a row: a list of 2, 4, 8, ... slots, or a row of bits where that is no
longer than the next list. So a further holder takes four bytes at most.

Keys that were told of together share a row, until something happens to some of them only. So the
blocks of a prompt mostly have few different references, which is what makes a walk along it fast.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from epp.framework import Mask

from .keytable import U32, U64
from .rows import Counts, RowPool, Rows

MAX_SLOTS: Final = 0xFFFF
PAD: Final = np.uint16(MAX_SLOTS)
"""Fills a list that isn't full; nobody's slot."""
NOBODY: Final = np.uint32(0xFFFFFFFF)
"""The reference of a key without holders."""
BITS: Final = 15
"""Kind of a row of bits. A list of 2 ** kind slots has that kind, and one slot alone has 0."""
ROW_BITS: Final = 28
ROW: Final = (1 << ROW_BITS) - 1
WORD: Final = 64
_SLOT_BITS: Final = np.uint64(16)
_ONE: Final = np.uint64(1)

Slots = NDArray[np.uint16]
Places = NDArray[np.intp]


class HolderSets:
    """Who made a reference for some keys says what becomes of it, for as many keys."""

    def __init__(self) -> None:
        self._words = 1
        """Of 64 slots, in a row of bits; a power of two."""
        self._bits = RowPool(1, np.dtype(np.uint64))
        self._lists: dict[int, RowPool] = {}

    @property
    def nbytes(self) -> int:
        return self._bits.nbytes + sum(pool.nbytes for pool in self._lists.values())

    @property
    def width(self) -> int:
        """Slots in a row of bits."""
        return self._words * WORD

    def admit(self, slot: int) -> None:
        """`slot`, below MAX_SLOTS, may be a holder."""
        words = self._words
        while slot >= words * WORD:
            words *= 2
        if words > self._words:
            self._words = words
            self._bits.widen(words)

    # Reading

    def listed(self, ref: int) -> list[int]:
        """The holders that a reference of another kind than BITS names, and maybe PAD."""
        kind = ref >> ROW_BITS
        return self._lists[kind].cells[ref & ROW].tolist() if kind else [ref]

    def bits(self, rows: Rows | int) -> U64:
        """The holders in rows of bits, or in one."""
        return self._bits.cells.take(rows, axis=0)

    def has(self, refs: U32, slots: Slots) -> Mask:
        """Where the slot of the same place is among the holders."""
        found: Mask = refs == slots
        for kind, places, rows in self._parts(refs):
            mine = slots[places]
            if kind == BITS:
                words = self._bits.cells[rows, mine // WORD]
                found[places] = words & _bits(mine) != 0
            else:
                found[places] = (self._held(kind, rows) == mine[:, None]).any(axis=1)
        return found

    def has_any(self, refs: U32, slots: Mask) -> Mask:
        """Where one of the marked slots is; `slots` has a mark for each up to MAX_SLOTS."""
        found: Mask = slots.take(np.minimum(refs, PAD))
        words = np.packbits(slots[: self.width], bitorder="little").view(np.uint64)
        for kind, places, rows in self._parts(refs):
            if kind == BITS:
                found[places] = (self.bits(rows) & words).any(axis=1)
            else:
                found[places] = slots.take(self._held(kind, rows)).any(axis=1)
        return found

    def mark(self, refs: U32, into: Places, marks: Mask) -> None:
        """Set `marks`, all False, in the row `into` of each reference and the columns of its
        holders."""
        alone = refs <= PAD
        marks[into[alone], refs[alone]] = True
        for kind, places, rows in self._parts(refs):
            if kind == BITS:
                every = np.unpackbits(self.bits(rows).view(np.uint8), axis=1, bitorder="little")
                marks[into[places], : self.width] = every
            else:
                held = self._held(kind, rows)
                of, at = (held != PAD).nonzero()
                marks[into[places[of]], held[of, at]] = True

    # Changing

    def plus(self, refs: U32, slots: Slots) -> U32:
        """References of the same holders and one slot more each, in place of these."""
        groups, more, of, uses = _grouped(refs, slots)
        made = groups.copy()
        alone = (groups <= PAD).nonzero()[0]
        if len(alone):
            pair = np.empty((len(alone), 2), np.uint16)
            pair[:, 0], pair[:, 1] = groups[alone], more[alone]
            made[alone] = self._list(1, pair, uses[alone])
        for kind, places, rows in self._parts(groups):
            new = more[places]
            if kind == BITS:
                words = self.bits(rows)
                words[np.arange(len(rows)), new // WORD] |= _bits(new)
                made[places] = self._row(words, uses[places])
                continue
            held = self._held(kind, rows)
            count = (held != PAD).sum(axis=1)
            full = count == held.shape[1]
            room = (~full).nonzero()[0]
            held[room, count[room]] = new[room]
            made[places[room]] = self._list(kind, held[room], uses[places[room]])
            if full.any():
                made[places[full]] = self._raised(kind, held[full], new[full], uses[places[full]])
        self._leave(groups, uses)
        return made[of]

    def minus(self, refs: U32, slots: Slots) -> U32:
        """The same without one slot each, which is a holder; NOBODY without others."""
        groups, less, of, uses = _grouped(refs, slots)
        made = np.full(len(groups), NOBODY)
        for kind, places, rows in self._parts(groups):
            old, every = less[places], np.arange(len(rows))
            if kind == BITS:
                words = self.bits(rows)
                words[every, old // WORD] &= ~_bits(old)
                few = np.bitwise_count(words).sum(axis=1) <= self._words
                made[places[~few]] = self._row(words[~few], uses[places[~few]])
                if few.any():
                    held = _slots_of(words[few], 2 * self._words)
                    made[places[few]] = self._smallest(held, uses[places[few]])
                continue
            held = self._held(kind, rows)
            last = (held != PAD).sum(axis=1) - 1
            held[every, (held == old[:, None]).argmax(axis=1)] = held[every, last]
            held[every, last] = PAD
            few = last <= max(1, held.shape[1] // 4)
            made[places[~few]] = self._list(kind, held[~few], uses[places[~few]])
            if few.any():
                made[places[few]] = self._smallest(
                    held[few, : held.shape[1] // 2], uses[places[few]]
                )
        self._leave(groups, uses)
        return made[of]

    def drop(self, refs: U32) -> None:
        """Nobody asks for these references any more."""
        self._leave(*np.unique(refs, return_counts=True))

    # Mechanics

    def _parts(self, refs: U32) -> Iterator[tuple[int, Places, Rows]]:
        """Those with several holders: by kind, their places among `refs`, and their rows."""
        kinds = refs >> ROW_BITS
        present = np.bincount(kinds, minlength=1)
        for kind in (present[1:].nonzero()[0] + 1).tolist():
            places = (kinds == kind).nonzero()[0]
            yield kind, places, (refs[places] & ROW).astype(np.intp)

    def _held(self, kind: int, rows: Rows) -> Slots:
        held: Slots = self._lists[kind].cells.take(rows, axis=0)
        return held

    def _list(self, kind: int, held: Slots, uses: Counts) -> U32:
        """New lists of that kind with these holders."""
        pool = self._lists.get(kind)
        if pool is None:
            pool = self._lists[kind] = RowPool(1 << kind, np.dtype(np.uint16))
        return _refs(kind, pool.take(held, uses))

    def _row(self, words: U64, uses: Counts) -> U32:
        return _refs(BITS, self._bits.take(words, uses))

    def _leave(self, groups: U32, uses: Counts) -> None:
        """So many users of each, of which the same ones stand together, use it no more."""
        begins = np.concatenate(([True], groups[1:] != groups[:-1]))
        if not begins.all():
            first = begins.nonzero()[0]
            groups, uses = groups[first], np.add.reduceat(uses, first)
        for kind, places, rows in self._parts(groups):
            pool = self._bits if kind == BITS else self._lists[kind]
            pool.leave(rows, uses[places])

    def _raised(self, kind: int, held: Slots, more: Slots, uses: Counts) -> U32:
        """Of full lists of that kind, with one holder more each, the next larger ones."""
        every = np.arange(len(held))
        if 8 * self._words > 4 << kind:
            wider = np.full((len(held), 2 << kind), PAD)
            wider[:, : held.shape[1]] = held
            wider[:, held.shape[1]] = more
            return self._list(kind + 1, wider, uses)
        words = np.zeros((len(held), self._words), np.uint64)
        for column in (*held.T, more):
            words[every, column // WORD] |= _bits(column)
        return self._row(words, uses)

    def _smallest(self, held: Slots, uses: Counts) -> U32:
        """For these holders, which fit into lists of their width."""
        made = held[:, 0].astype(np.uint32)
        if held.shape[1] > 1:
            several = held[:, 1] != PAD
            kind = held.shape[1].bit_length() - 1
            made[several] = self._list(kind, held[several], uses[several])
        return made


def _grouped(refs: U32, slots: Slots) -> tuple[U32, Slots, Places, Counts]:
    """The different pairs, for each place that of its pair among those, and how many of each there
    are. Pairs of the same reference stand together."""
    if len(refs) and (refs == refs[0]).all() and (slots == slots[0]).all():
        return refs[:1], slots[:1], np.zeros(len(refs), np.intp), np.array([len(refs)])
    pairs = refs.astype(np.uint64) << _SLOT_BITS | slots
    groups, of, uses = np.unique(pairs, return_inverse=True, return_counts=True)
    return (groups >> _SLOT_BITS).astype(np.uint32), groups.astype(np.uint16), of, uses


def _refs(kind: int, rows: Rows) -> U32:
    return rows.astype(np.uint32) | np.uint32(kind << ROW_BITS)


def _bits(slots: Slots) -> U64:
    """The bit of each in its word."""
    return _ONE << (slots % WORD).astype(np.uint64)


def _slots_of(words: U64, width: int) -> Slots:
    """Rows of bits as lists of that width, which is enough for each."""
    marks = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    of, slot = marks.nonzero()
    first = np.concatenate(([0], marks.sum(axis=1, dtype=np.intp).cumsum()[:-1]))
    held = np.full((len(words), width), PAD)
    held[of, np.arange(len(of)) - first[of]] = slot
    return held
