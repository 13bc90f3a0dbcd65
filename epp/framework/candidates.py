"""The endpoints that a decision may choose, with their numbers side by side as columns.

A plugin may treat `Candidates` as a plain sequence of `Endpoint` values; each is built when it is
looked at. One that rates hundreds of endpoints reads columns instead: numpy arrays of float64, one
row a candidate, in the order of the sequence, NaN where a number is not known. Columns are shared
and read-only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from .types import Endpoint, Source

Column = NDArray[np.float64]
Mask = NDArray[np.bool_]


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


COLUMNS: Mapping[str, Callable[[Endpoint], float]] = {
    "waiting": lambda one: _number(one.load.waiting),
    "running": lambda one: _number(one.load.running),
    "kv_usage": lambda one: _number(one.load.kv_usage),
    "active_blocks": lambda one: _number(one.load.active_blocks),
    "total_blocks": lambda one: _number(one.load.total_blocks),
    "block_tokens": lambda one: float(one.load.block_tokens),
    "reserved_requests": lambda one: float(one.load.reserved_requests),
    "reserved_pending": lambda one: float(one.load.reserved_pending),
    "reserved_prefill_tokens": lambda one: float(one.load.reserved_prefill_tokens),
    "reserved_decode_blocks": lambda one: float(one.load.reserved_decode_blocks),
    "prefill_tokens_per_s": lambda one: one.speeds.prefill_tokens_per_s,
    "decode_s_per_token": lambda one: one.speeds.decode_s_per_token,
    "matched_tokens": lambda one: float(one.match.tokens),
    "credited_tokens": lambda one: max(0.0, one.match.credited_tokens),
    "precise": lambda one: float(one.match.source is Source.PRECISE),
}
"""Every column by its name: how it follows from an endpoint. Fields of `Load`, `Speeds` and `Match`
under their own names; `precise` is 1 where the match comes from the engine's own events."""


class Candidates(Sequence[Endpoint]):
    """See the module. Immutable; `take` gives a part of it."""

    __slots__ = ("_at", "_built", "_columns", "_size")

    def __init__(
        self,
        size: int,
        at: Callable[[int], Endpoint],
        columns: Mapping[str, Column] | None = None,
    ) -> None:
        """`at` builds the endpoint of a row. `columns` may hold any of `COLUMNS`; a missing one is
        made from the endpoints when it is first read."""
        self._size = size
        self._at = at
        self._columns = dict(columns or {})
        self._built: dict[int, Endpoint] = {}

    @classmethod
    def of(cls, endpoints: Sequence[Endpoint]) -> "Candidates":
        """From values that are there already. `Candidates` themselves stay as they are."""
        if isinstance(endpoints, Candidates):
            return endpoints
        return cls(len(endpoints), endpoints.__getitem__)

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Endpoint: ...
    @overload
    def __getitem__(self, index: slice) -> "Candidates": ...
    def __getitem__(self, index: int | slice) -> "Endpoint | Candidates":
        if isinstance(index, slice):
            return self.take(range(self._size)[index])
        row = index + self._size if index < 0 else index
        if not 0 <= row < self._size:
            raise IndexError(index)
        built = self._built.get(row)
        if built is None:
            built = self._built[row] = self._at(row)
        return built

    def __iter__(self) -> Iterator[Endpoint]:
        return (self[row] for row in range(self._size))

    def column(self, name: str) -> Column:
        """One number of every candidate. Raises KeyError for a name that is not in `COLUMNS`."""
        column = self._columns.get(name)
        if column is None:
            reads = COLUMNS[name]
            column = np.fromiter((reads(one) for one in self), np.float64, self._size)
            column.flags.writeable = False
            self._columns[name] = column
        return column

    def take(self, rows: Sequence[int]) -> "Candidates":
        """The candidates of these rows, in this order."""
        if isinstance(rows, range) and rows == range(self._size):
            return self
        picked = np.fromiter(rows, np.intp, len(rows))
        columns = {name: column[picked] for name, column in self._columns.items()}
        for column in columns.values():
            column.flags.writeable = False
        return Candidates(len(rows), lambda row: self[int(picked[row])], columns)

    def keep(self, mask: Sequence[bool] | Mask) -> "Candidates":
        """Those where the mask is true; the same object where it is true throughout."""
        rows = np.flatnonzero(np.asarray(mask, dtype=np.bool_))
        return self if len(rows) == self._size else self.take(rows.tolist())
