"""The endpoints that a decision may choose, with their numbers side by side as columns.

A plugin may treat `Candidates` as a plain sequence of `Endpoint` values; each is built when it is
looked at. One that rates hundreds of endpoints reads columns instead: numpy arrays of float64, one
row a candidate, in the order of the sequence, NaN where a number is not known. Columns are shared
and read-only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from .types import Endpoint, EndpointId, Lora, Source

T = TypeVar("T")

Column = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]
_NO_ROWS: Rows = np.empty(0, np.intp)


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _is_nan(value: float) -> bool:
    """Faster than numpy's, for a single number."""
    return value != value  # noqa: PLR0124 - only NaN differs from itself


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
    "decode_s_per_block": lambda one: one.speeds.decode_s_per_block,
    "pull_tokens_per_s": lambda one: one.speeds.pull_tokens_per_s,
    "matched_tokens": lambda one: float(one.match.tokens),
    "credited_tokens": lambda one: max(0.0, one.match.credited_tokens),
    "precise": lambda one: float(one.match.source is Source.PRECISE),
    "serves_decode": lambda one: float(one.role.serves_decode),
    "serves_prefill": lambda one: float(one.role.serves_prefill),
    "serves_encode": lambda one: float(one.role.serves_encode),
}
"""Every column by its name: how it follows from an endpoint. Fields of `Load`, `Speeds` and `Match`
under their own names; `precise` is 1 where the match comes from the engine's own events, `serves_…`
is 1 where the role says so."""

_ATTRIBUTES = {
    "WaitingQueueSize": "waiting",
    "RunningRequestsSize": "running",
    "KVCacheUsagePercent": "kv_usage",
}


def attribute(name: str) -> str:
    """The column that an endpoint's attribute stands in, by the reference's name or the column's
    own. Raises ValueError for one that is not kept, such as a custom metric of an engine."""
    column = _ATTRIBUTES.get(name, name)
    if column not in COLUMNS:
        known = ", ".join([*_ATTRIBUTES, *COLUMNS])
        raise ValueError(f"no attribute {name!r} of endpoints is kept; known are {known}")
    return column


class Candidates(Sequence[Endpoint]):
    """See the module. Immutable; `take` gives a part of it."""

    __slots__ = (
        "_addresses",
        "_at",
        "_built",
        "_columns",
        "_ids",
        "_labels",
        "_loras",
        "_rows",
        "_size",
        "_whole",
        "_why",
    )

    def __init__(
        self,
        size: int,
        at: Callable[[int], Endpoint],
        columns: dict[str, Column] | None = None,
        *,
        ids: Sequence[EndpointId] | None = None,
        labels: Sequence[Mapping[str, str]] | None = None,
        addresses: Sequence[str] | None = None,
        loras: Sequence[Lora | None] | None = None,
    ) -> None:
        """`at` builds the endpoint of a row. `columns` may hold any of `COLUMNS`; what is missing
        is made from the endpoints when it is first read, and put there."""
        self._size = size
        self._at = at
        self._columns = {} if columns is None else columns
        self._ids = ids
        self._labels = labels
        self._addresses = addresses
        self._loras = loras
        self._built: dict[int, Endpoint] = {}
        self._whole: Candidates | None = None
        self._rows = _NO_ROWS
        self._why = ""

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

    @property
    def ids(self) -> Sequence[EndpointId]:
        """Of every candidate; no endpoint is built for it where the maker of these gave them."""
        if self._ids is None:
            self._ids = self._listed(lambda one: one.ids, lambda one: one.id)
        return self._ids

    @property
    def addresses(self) -> Sequence[str]:
        """Of every candidate, likewise."""
        if self._addresses is None:
            self._addresses = self._listed(lambda one: one.addresses, lambda one: one.address)
        return self._addresses

    @property
    def labels(self) -> Sequence[Mapping[str, str]]:
        """Of every candidate, likewise."""
        if self._labels is None:
            self._labels = self._listed(lambda one: one.labels, lambda one: one.labels)
        return self._labels

    @property
    def loras(self) -> Sequence[Lora | None]:
        """Adapters of every candidate, likewise."""
        if self._loras is None:
            self._loras = self._listed(lambda one: one.loras, lambda one: one.load.lora)
        return self._loras

    def column(self, name: str) -> Column:
        """One number of every candidate. Raises KeyError for a name that is not in `COLUMNS`."""
        column = self._columns.get(name)
        if column is None:
            reads = COLUMNS[name]
            if self._whole is None:
                column = np.fromiter((reads(one) for one in self), np.float64, self._size)
            else:
                column = self._whole.column(name)[self._rows]
            column.flags.writeable = False
            self._columns[name] = column
        return column

    def columns(self, *names: str) -> list[Column]:
        """Several of them at once, which takes a step and not a call for each. Raises KeyError."""
        known = self._columns
        return [known[name] if name in known else self.column(name) for name in names]

    def queues(self) -> Column:
        """Requests ahead of a new one: the engine's count or ours, whichever is larger.

        NaN for an engine whose count is not known, beside one whose count is; where no engine's is
        known, our own count alone.
        """
        waiting, ours = self.column("waiting"), self.column("reserved_pending")
        if not self._size or _is_nan(np.fmin.reduce(waiting)):
            return ours
        return np.maximum(waiting, ours)

    def answering(self) -> Column:
        """Requests that are being answered: the engine's count or ours; unknown as in `queues`."""
        running = self.column("running")
        ours = self.column("reserved_requests") - self.column("reserved_pending")
        if not self._size or _is_nan(np.fmin.reduce(running)):
            return np.maximum(ours, 0.0)
        return np.maximum(running, ours)

    def _listed(
        self, known: "Callable[[Candidates], Sequence[T]]", read: Callable[[Endpoint], T]
    ) -> list[T]:
        """From those of which this is a part, else from the endpoints."""
        if self._whole is None:
            return [read(one) for one in self]
        all_of_them = known(self._whole)
        return [all_of_them[row] for row in self._rows.tolist()]

    def take(self, rows: Sequence[int] | Rows, why: str = "") -> "Candidates":
        """The candidates of these rows, in this order. `why` says what is against the others."""
        if isinstance(rows, range) and rows == range(self._size):
            return self
        picked = np.asarray(rows, np.intp)
        part = Candidates(len(picked), lambda row: self[int(picked[row])])
        part._whole, part._rows, part._why = self, picked, why
        return part

    def keep(self, mask: Sequence[bool] | Mask, why: str = "") -> "Candidates":
        """Those where the mask is true; the same object where it is true throughout."""
        kept = np.asarray(mask, np.bool_)
        if np.count_nonzero(kept) == self._size:
            return self
        return self.take(kept.nonzero()[0], why)

    def excluded(
        self, most: int, since: "Candidates | None" = None
    ) -> list[tuple[str, int, tuple[str, ...]]]:
        """What was left out on the way to these candidates, in the order of the steps: why, how
        many, and the addresses of the first `most` of them. `since`: look no further back than
        these, of which this is a part."""
        steps: list[tuple[str, int, tuple[str, ...]]] = []
        part = self
        while part is not since and part._whole is not None:
            whole = part._whole
            gone = np.ones(len(whole), np.bool_)
            gone[part._rows] = False
            rows = np.flatnonzero(gone)
            if part._why and len(rows):
                steps.append((part._why, len(rows), whole._addressed(rows[:most])))
            part = whole
        return steps[::-1]

    def _addressed(self, rows: Rows) -> tuple[str, ...]:
        """The addresses of a few rows, without asking for all."""
        whole = self
        while whole._addresses is None and whole._whole is not None:
            rows, whole = whole._rows[rows], whole._whole
        addresses = whole.addresses
        return tuple(addresses[row] for row in rows.tolist())
