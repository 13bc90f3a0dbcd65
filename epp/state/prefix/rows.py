"""Rows of equal width in one array, each used by several, taken and left many at a time."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]
Counts = NDArray[np.intp]

AT_LEAST: Final = 64
"""Rows by which a pool grows."""


class RowPool:
    """Memory grows by an eighth, and is given back once no row is in use."""

    def __init__(self, width: int, kind: np.dtype[Any]) -> None:
        # No view of these may outlive a call: they are resized in place.
        self.cells: NDArray[Any] = np.zeros((0, width), kind)
        self._uses: NDArray[np.uint32] = np.zeros(0, np.uint32)
        """How many use each row."""
        self._used = 0
        """Rows that were ever taken."""
        self._free: Rows = np.zeros(0, np.intp)
        self._frees = 0
        """How many of those are in no use: the first so many of `_free`."""

    def __len__(self) -> int:
        """Rows in use."""
        return self._used - self._frees

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in (self.cells, self._uses, self._free))

    def take(self, cells: NDArray[Any], uses: Counts) -> Rows:
        """Rows with these cells, each for so many users."""
        count = len(cells)
        again = min(count, self._frees)
        self._frees -= again
        rows = self._free[self._frees : self._frees + again].copy()
        if again < count:
            start = self._used
            self._used += count - again
            if self._used > len(self.cells):
                room = self._used + max(AT_LEAST, self._used // 8)
                self.cells.resize((room, self.cells.shape[1]), refcheck=False)
                self._uses.resize(room, refcheck=False)
            rows = np.concatenate((rows, np.arange(start, self._used)))
        self.cells[rows] = cells
        self._uses[rows] = uses
        return rows

    def leave(self, rows: Rows, uses: Counts) -> None:
        """So many users of each row use it no more."""
        self._uses[rows] -= uses.astype(np.uint32)
        unused = rows[self._uses[rows] == 0]
        count = self._frees + len(unused)
        if count == self._used:
            self._give_back()
            return
        if count > len(self._free):
            self._free.resize(count + max(AT_LEAST, count // 8), refcheck=False)
        self._free[self._frees : count] = unused
        self._frees = count

    def widen(self, width: int) -> None:
        """Make all rows wider, the new cells 0."""
        cells = np.zeros((len(self.cells), width), self.cells.dtype)
        cells[:, : self.cells.shape[1]] = self.cells
        self.cells = cells

    def _give_back(self) -> None:
        for column in (self._uses, self._free):
            column.resize(0, refcheck=False)
        self.cells.resize((0, self.cells.shape[1]), refcheck=False)
        self._used = self._frees = 0
