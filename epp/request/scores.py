"""The scores of one decision: the best rows at once, as values only where somebody reads them."""

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from epp.framework import NO_MATCH, Candidates, Column, Match, ScoreRow, Source

MAX_ROWS = 16
"""Candidates in a decision's table, best first; the others are left out."""
MANY = 512
"""Among so many, the best are set apart before they are sorted."""

_MATCH = ("matched_tokens", "credited_tokens", "precise")
_QUEUES = ("waiting", "reserved_pending")


class ScoreTable(Sequence[ScoreRow]):
    """Rows of the chosen, then of the best others. It holds on to nothing but their numbers."""

    __slots__ = ("_built", "_ids", "_match", "_names", "_queues", "_scores", "_totals", "_where")

    def __init__(
        self,
        candidates: Candidates,
        totals: Column,
        scores: NDArray[np.float64],
        names: Sequence[str],
        listed: Sequence[int],
    ) -> None:
        """`scores`: a row a scorer, of which `names` are in the same order. `listed`: rows of the
        candidates that stay, in their order."""
        rows = np.array(listed, np.intp)
        ids, addresses = candidates.ids, candidates.addresses
        self._ids = [ids[row] for row in listed]
        self._where = [addresses[row] for row in listed]
        self._totals = totals.take(rows)
        self._names = tuple(names)
        self._scores = scores.take(rows, axis=1)
        read = candidates.column
        self._match = [read(name).take(rows) for name in _MATCH]
        self._queues = [read(name).take(rows) for name in _QUEUES]
        self._built: list[ScoreRow | None] = [None] * len(listed)

    def __len__(self) -> int:
        return len(self._built)

    @overload
    def __getitem__(self, index: int) -> ScoreRow: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ScoreRow]: ...
    def __getitem__(self, index: int | slice) -> ScoreRow | Sequence[ScoreRow]:
        if isinstance(index, slice):
            return tuple(self[row] for row in range(len(self))[index])
        built = self._built[index]
        if built is None:
            built = self._built[index] = self._row(index)
        return built

    def _row(self, row: int) -> ScoreRow:
        return ScoreRow(
            endpoint=self._ids[row],
            address=self._where[row],
            total=float(self._totals[row]),
            scores=dict(zip(self._names, self._scores[:, row].tolist(), strict=True)),
            match=_match(*(float(column[row]) for column in self._match)),
            queue=_queue(*(float(column[row]) for column in self._queues)),
        )


def best_first(totals: Column, most: int) -> list[int]:
    """Rows of the highest ratings, at most so many."""
    if len(totals) < MANY or most >= len(totals):
        order: list[int] = totals.argsort()[: -most - 1 : -1].tolist()
        return order
    few = totals.argpartition(-most)[-most:]
    best: list[int] = few[totals[few].argsort()[::-1]].tolist()
    return best


def _match(tokens: float, credited: float, precise: float) -> Match:
    if precise:
        return Match(int(tokens), Source.PRECISE, credited / tokens)
    return Match(int(tokens), Source.PREDICTED, credited / tokens) if tokens else NO_MATCH


def _queue(waiting: float, pending: float) -> int | None:
    if waiting != waiting:  # noqa: PLR0124 - NaN: not known
        return int(pending) or None
    return int(max(waiting, pending))
