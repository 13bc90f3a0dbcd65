"""Changes of many keys as few steps, in none of which a key stands twice. Pure."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .keytable import U64

Places = NDArray[np.intp]


def rounds(keys: U64, number: Places) -> Iterator[Places | slice]:
    """Places among `keys`: first those of each key's first change, then of its second, and so on,
    each time in their order. `number`: of the list that brings a key, ascending; within a list only
    the first of equal ones counts.
    """
    ordered = np.sort(keys)
    if (ordered[1:] != ordered[:-1]).all():
        yield slice(None)
        return
    order = keys.argsort(kind="stable")
    ordered, lists = keys[order], number[order]
    another = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    counts = another | np.concatenate(([True], lists[1:] != lists[:-1]))
    order, another = order[counts], another[counts]
    place = np.arange(len(order))
    rank = place - np.maximum.accumulate(np.where(another, place, 0))
    by_rank = np.lexsort((order, rank))
    ends = np.bincount(rank).cumsum()[:-1]
    yield from np.split(order[by_rank], ends)
