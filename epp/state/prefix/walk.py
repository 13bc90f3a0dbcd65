"""How many leading keys each slot holds, by the holders of successive keys.

Prompts begin with what many share and go on with what few have. So the walk has two legs. While
the holders of a key are many they stand in rows of bits, and who is left is found by running "and"
over the rows. From the first key with few holders on only those are followed, one by one. Keys with
one reference after the other the same are one step.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from epp.framework import Mask

from .keytable import U32, U64
from .sets import BITS, ROW, ROW_BITS, WORD, HolderSets

Depths = NDArray[np.int64]

WORD_SHIFT: Final = WORD.bit_length() - 1
FEWER: Final = BITS << ROW_BITS
"""A reference below it names its holders by a list, or is one."""


def walk(sets: HolderSets, refs: U32, by_slot: Depths) -> None:
    """Write into `by_slot`, which is all 0, how many of `refs` from the first on each slot is in.

    `by_slot` has a place for each slot that a row of bits has, and one more.
    """
    if not len(refs):
        return
    turns = (refs[1:] != refs[:-1]).nonzero()[0]
    fewer = refs < FEWER
    first = int(fewer.argmax())
    if not fewer[first]:
        last = np.append(turns, len(refs) - 1)
        _through_bits(sets.bits(refs[last] & ROW), last + 1, by_slot)
        return
    many = int(turns.searchsorted(first))
    last, rest = turns[:many], turns[many:]
    ends = [first, *(rest + 1).tolist(), len(refs)]
    steps: list[int] = [*refs[rest].tolist(), *refs[-1:].tolist()]
    few = sets.listed(steps[0])
    if many:
        alive = _through_bits(sets.bits(refs[last] & ROW), last + 1, by_slot)
        few = [slot for slot in few if slot < len(alive) and alive[slot]]
    _through_few(sets, few, steps, ends, by_slot)


def _through_bits(words: U64, ends: NDArray[np.intp], by_slot: Depths) -> Mask:
    """The first leg, by the rows of its steps and where these end. Returns who is in all."""
    if len(words) > 1:
        words = np.bitwise_and.accumulate(words, axis=0)
        lost = (words[:-1] ^ words[1:]).ravel()
        where = lost.nonzero()[0]
        marks = _marks(lost[where]).nonzero()[0]
        bit = (where * WORD)[marks >> WORD_SHIFT] + (marks & WORD - 1)
        width = words.shape[1] * WORD  # a power of two
        by_slot[bit & width - 1] = ends[bit >> width.bit_length() - 1]
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
            bits = int.from_bytes(sets.bits(step & ROW).astype("<u8").tobytes(), "little")
            held = {slot for slot in alive if bits >> slot & 1}
        else:
            held = alive.intersection(sets.listed(step))
        for slot in alive - held:
            by_slot[slot] = start
        alive = held
        if not alive:
            return
    by_slot[list(alive)] = ends[-1]
