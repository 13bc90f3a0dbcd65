"""The ratings of candidates as pickers see them: a sequence of numbers, and an array at no cost."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from epp.framework import Column


class Ratings(Sequence[float]):
    """One rating a candidate, in their order. `numpy.asarray` of it is the array itself, so that a
    picker among hundreds need not make an array of a list."""

    __slots__ = ("_column", "_listed")

    def __init__(self, column: Column) -> None:
        self._column = column.view()
        self._column.flags.writeable = False
        self._listed: list[float] | None = None

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> list[float]: ...
    def __getitem__(self, index: int | slice) -> float | list[float]:
        if self._listed is None:
            self._listed = self._column.tolist()
        return self._listed[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Column:
        return np.array(self._column, dtype, copy=copy)
