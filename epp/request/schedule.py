"""Run one profile: filter the candidates of a request, rate them, pick. Pure.

Every scorer rates every candidate between 0 and 1, and the weighted sum decides. Plugins are asked
through the ballot: a scorer that fails has no say in this one request, a picker that fails is
stood in for by the highest rating. A filter that fails, or that leaves nobody, is left out where
somebody has to be chosen (fault B01), else it leaves nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import index

import numpy as np
from numpy.typing import NDArray

from epp.framework import (
    Candidates,
    Chance,
    Column,
    Endpoint,
    Filter,
    Mask,
    Request,
    ScoreRow,
    Source,
    sample,
)

from .ballot import Ballot, Why
from .plan.live import BuiltProfile, Named, Rater
from .ratings import Ratings
from .scores import MAX_ROWS, ScoreTable, best_first

TIE = 1e-9
"""Ratings closer than this are equal: sums of floats differ in their last bits."""


@dataclass(slots=True, kw_only=True)
class Selection:
    """What a profile came to."""

    chosen: tuple[Endpoint, ...]
    """Best first; empty where the filters left nobody."""
    reasons: tuple[str, ...]
    table: Sequence[ScoreRow]
    left: Candidates
    """Those that every filter kept."""
    weights: dict[str, float]
    """Of the scorers that had a say."""


def schedule(
    request: Request,
    candidates: Candidates,
    profile: BuiltProfile,
    chance: Chance,
    ballot: Ballot,
    *,
    must: bool = True,
    rows: int = MAX_ROWS,
) -> Selection:
    """Choose among the candidates, of which there is at least one.

    `must`: somebody has to be chosen. Without it the filters may leave nobody. `rows`: most
    candidates in the table.
    """
    left, notes = _filtered(request, candidates, profile, ballot, must=must)
    if not left:
        return Selection(chosen=(), reasons=(), table=(), left=left, weights={})
    rated = _rated(request, left, profile, ballot)
    totals = rated.totals()
    picked = _picked(totals, profile, chance, ballot)
    chosen = tuple([left[row] for row in picked])
    best = best_first(totals, rows + len(picked))
    if len(rated.weights) < len(profile.scorers):
        lost = [rater.name for rater in profile.scorers if rater.name not in rated.weights]
        notes += [f"without {name}" for name in lost]
    return Selection(
        chosen=chosen,
        reasons=(*_reasons(request, chosen[0], _tied(totals, best)), *notes),
        table=ScoreTable(
            left, totals, rated.scores, tuple(rated.weights), _listed(best, picked, rows)
        )
        if profile.scorers
        else (),
        left=left,
        weights=rated.weights,
    )


@dataclass(slots=True)
class _Rated:
    """What the scorers say that have a say."""

    weights: dict[str, float]
    scores: NDArray[np.float64]
    """A row a scorer, in the same order, a column a candidate; each number between 0 and 1."""

    def totals(self) -> Column:
        """Sums in the order of the scorers, so that equal scores give equal sums."""
        weights, scores = list(self.weights.values()), self.scores
        if weights.count(1.0) < len(weights):
            scores = scores * np.array(weights)[:, None]
        totals: Column = np.add.reduce(scores)
        return totals


def _filtered(
    request: Request,
    candidates: Candidates,
    profile: BuiltProfile,
    ballot: Ballot,
    *,
    must: bool,
) -> tuple[Candidates, list[str]]:
    """Those that every filter keeps, and what went wrong."""
    left = candidates
    notes: list[str] = []
    for one in profile.filters:
        mask = _mask(request, left, one, ballot)
        kept = 0 if mask is None else np.count_nonzero(mask)
        if kept == len(left):
            continue
        if mask is None or not kept:
            if not must:
                return left.take([], one.name), notes
            notes.append(f"{one.name} {'failed' if mask is None else 'left nobody'}")
            continue
        left = left.keep(mask, one.name)
    return left, notes


def _mask(request: Request, left: Candidates, one: Named[Filter], ballot: Ballot) -> Mask | None:
    kept = ballot.ask(one.name, lambda: np.asarray(one.plugin.keep(request, left), np.bool_))
    if kept is not None and kept.shape != (len(left),):
        ballot.blame(one.name, Why.WRONG_SHAPE)
        return None
    return kept


def _rated(request: Request, left: Candidates, profile: BuiltProfile, ballot: Ballot) -> _Rated:
    heard: list[Rater] = []
    scores = np.empty((len(profile.scorers), len(left)))
    for rater in profile.scorers:
        column = ballot.ask(rater.name, partial(_column, rater, request, left))
        if column is None:
            continue
        if column.shape != (len(left),):
            ballot.blame(rater.name, Why.WRONG_SHAPE)
            continue
        scores[len(heard)] = column
        heard.append(rater)
    scores = scores[: len(heard)]
    if heard and not _in_range(scores):
        heard, scores = _cleaned(heard, scores, ballot)
    return _Rated({rater.name: rater.weight for rater in heard}, scores)


def _in_range(scores: NDArray[np.float64]) -> bool:
    """Whether all of them are numbers from 0 to 1."""
    least, most = scores.item(scores.argmin()), scores.item(scores.argmax())
    return least >= 0.0 and most <= 1.0  # NaN is neither, and the least as well as the most


def _column(rater: Rater, request: Request, left: Candidates) -> Column:
    return np.asarray(rater.plugin.score(request, left), np.float64)


def _cleaned(
    heard: list[Rater], scores: NDArray[np.float64], ballot: Ballot
) -> tuple[list[Rater], NDArray[np.float64]]:
    """Without the scorers that gave something that is no number, and within the range."""
    finite = [bool(np.isfinite(column).all()) for column in scores]
    for rater, column, good in zip(heard, scores, finite, strict=True):
        if not good:
            ballot.blame(rater.name, Why.NOT_FINITE)
        elif column.min() < 0.0 or column.max() > 1.0:
            ballot.blame(rater.name, Why.OUT_OF_RANGE)
    left = [rater for rater, good in zip(heard, finite, strict=True) if good]
    return left, np.clip(scores[finite], 0.0, 1.0)


def _picked(totals: Column, profile: BuiltProfile, chance: Chance, ballot: Ballot) -> list[int]:
    picker, ratings = profile.picker, Ratings(totals)
    rows = ballot.ask(
        picker.name, lambda: [index(row) for row in picker.plugin.pick(ratings, chance)]
    )
    if rows is not None:
        if len(rows) == 1 and 0 <= rows[0] < len(totals):
            return rows
        if rows and min(rows) >= 0 and max(rows) < len(ratings) and len(set(rows)) == len(rows):
            return rows
        ballot.blame(picker.name, Why.WRONG_SHAPE)
    return sample(_best(totals), 1, chance)


def _best(totals: Column) -> list[int]:
    """Rows of the highest rating; there is one at least."""
    best: list[int] = _are_best(totals).nonzero()[0].tolist()
    return best


def _tied(totals: Column, best: list[int]) -> int:
    """How many have the highest rating. `best`: rows of the highest ones, the highest first."""
    if len(best) > 1 and totals.item(best[1]) < totals.item(best[0]) - TIE:
        return 1
    return int(np.count_nonzero(_are_best(totals)))


def _listed(best: list[int], picked: list[int], most: int) -> list[int]:
    """The picked rows, then the best of the others, at most so many."""
    if best[: len(picked)] != picked:
        best = [*picked, *[row for row in best if row not in picked]]
    return best[:most]


def _are_best(totals: Column) -> Mask:
    return totals >= totals.item(totals.argmax()) - TIE


def _reasons(request: Request, winner: Endpoint, tied: int) -> list[str]:
    match = winner.match
    reasons: list[str] = []
    if match.source is not Source.NONE and match.tokens > 0:
        held = f"prefix {match.tokens}/{request.prompt_tokens} tokens {match.source}"
        reasons.append(held if match.trust >= 1.0 else f"{held} trust {match.trust:.2f}")
    elif request.blocks:
        reasons.append("prefix not held there")
    elif request.scored:
        reasons.append("prompt shorter than a block")
    queue = winner.load.queue
    reasons.append("queue not known" if queue is None else f"queue {queue}")
    if tied > 1:
        reasons.append(f"tie of {tied}")
    return reasons
