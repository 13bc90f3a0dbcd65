"""How many leading keys each slot holds, by the holders of successive keys.

Prompts begin with what many share and go on with what few have. So the walk has two legs. While
the holders of a key are many they stand in rows of bits, and who is left is found by running "and"
over the rows. From the first key with few holders on only those are followed, one by one. Keys with
one reference after the other the same are one step.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from epp.framework import Mask

from .keytable import U32, U64
from .sets import BITS, ROW, ROW_BITS, WORD, HolderSets

Depths = NDArray[np.int64]


def walk(sets: HolderSets, refs: U32, by_slot: Depths) -> None:
    """Write into `by_slot`, which is all 0, how many of `refs` from the first on each slot is in.

    `by_slot` has a place for each slot that a row of bits has, and one more.
    """
    if not len(refs):
        return
    turns: Mask = np.ones(len(refs), np.bool_)
    np.not_equal(refs[1:], refs[:-1], out=turns[:-1])
    last = turns.nonzero()[0]
    steps, ends = refs[last], last + 1
    few = steps >> ROW_BITS != BITS
    many = int(few.argmax())
    if not many and not few[0]:
        many = len(steps)
    rest, starts = steps[many:].tolist(), [0, *ends[max(0, many - 1) :].tolist()]
    if not many:
        _through_few(sets, sets.listed(rest[0]), rest, starts, by_slot)
        return
    alive = _through_bits(sets.bits(steps[:many] & ROW), ends[:many], by_slot)
    if rest:
        left = [slot for slot in sets.listed(rest[0]) if slot < len(alive) and alive[slot]]
        _through_few(sets, left, rest, starts[1:], by_slot)


def _through_bits(words: U64, ends: NDArray[np.intp], by_slot: Depths) -> Mask:
    """The first leg, by the rows of its steps and where these end. Returns who is in all."""
    if len(words) > 1:
        words = np.bitwise_and.accumulate(words, axis=0)
        lost = (words[:-1] ^ words[1:]).ravel()
        where = lost.nonzero()[0]
        marks = _marks(lost[where]).nonzero()[0]
        step, word = np.divmod(where[marks // WORD], words.shape[1])
        by_slot[word * WORD + marks % WORD] = ends[step]
    alive = _marks(words[-1])
    by_slot[:-1][alive] = ends[-1]
    return alive


def _marks(words: U64) -> Mask:
    """One for each bit. Of a mask numpy finds the places many times faster than of numbers."""
    return np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_)


def _through_few(
    sets: HolderSets, slots: list[int], steps: Sequence[int], ends: Sequence[int], by_slot: Depths
) -> None:
    """The second leg. `slots` hold all up to `ends[0]`; the steps end at the others."""
    alive = set(slots)
    for step, start in zip(steps, ends, strict=False):
        if step >> ROW_BITS == BITS:
            words = sets.bits(np.array([step & ROW]))
            bits = int.from_bytes(words.astype("<u8").tobytes(), "little")
            held = {slot for slot in alive if bits >> slot & 1}
        else:
            held = alive.intersection(sets.listed(step))
        for slot in alive - held:
            by_slot[slot] = start
        alive = held
        if not alive:
            return
    by_slot[list(alive)] = ends[-1]
