"""Run one profile: filter the candidates of a request, rate them, pick. Pure.

Every scorer rates every candidate between 0 and 1, and the weighted sum decides. Plugins are asked
through the ballot: a scorer that fails has no say in this one request, a picker that fails is
stood in for by the highest rating. A filter that fails, or that leaves nobody, is left out where
somebody has to be chosen (fault B01), else it leaves nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

import numpy as np

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
from .scores import MAX_ROWS, ScoreTable

TIE = 1e-9
"""Ratings closer than this are equal: sums of floats differ in their last bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    scores, weights = _rated(request, left, profile, ballot)
    totals = np.zeros(len(left))
    for name, column in scores.items():
        totals += weights[name] * column
    lost = [rater.name for rater in profile.scorers if rater.name not in scores]
    picked = _picked(totals, profile, chance, ballot)
    chosen = tuple(left[row] for row in picked)
    tied = int(np.count_nonzero(totals >= totals.max() - TIE))
    return Selection(
        chosen=chosen,
        reasons=(
            *_reasons(request, chosen[0], tied),
            *notes,
            *(f"without {name}" for name in lost),
        ),
        table=ScoreTable(left, totals, scores, picked, rows) if profile.scorers else (),
        left=left,
        weights=weights,
    )


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
        if mask is not None and mask.all():
            continue
        if mask is None or not mask.any():
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


def _rated(
    request: Request, left: Candidates, profile: BuiltProfile, ballot: Ballot
) -> tuple[dict[str, Column], dict[str, float]]:
    """Clean scores and the weight of each scorer that has a say."""
    scores: dict[str, Column] = {}
    weights: dict[str, float] = {}
    for rater in profile.scorers:
        column = _column(request, left, rater, ballot)
        if column is not None:
            scores[rater.name] = column
            weights[rater.name] = rater.weight
    return scores, weights


def _column(request: Request, left: Candidates, rater: Rater, ballot: Ballot) -> Column | None:
    column = ballot.ask(
        rater.name, lambda: np.asarray(rater.plugin.score(request, left), np.float64)
    )
    if column is None:
        return None
    if column.shape != (len(left),):
        ballot.blame(rater.name, Why.WRONG_SHAPE)
        return None
    least, most = column.min(), column.max()
    if least >= 0.0 and most <= 1.0:  # NaN is neither
        return column
    if not np.isfinite(column).all():
        ballot.blame(rater.name, Why.NOT_FINITE)
        return None
    ballot.blame(rater.name, Why.OUT_OF_RANGE)
    return np.clip(column, 0.0, 1.0)


def _picked(totals: Column, profile: BuiltProfile, chance: Chance, ballot: Ballot) -> list[int]:
    picker, ratings = profile.picker, totals.tolist()
    rows = ballot.ask(
        picker.name, lambda: [index(row) for row in picker.plugin.pick(ratings, chance)]
    )
    if rows is not None:
        known = all(0 <= row < len(ratings) for row in rows)
        if rows and known and len(set(rows)) == len(rows):
            return rows
        ballot.blame(picker.name, Why.WRONG_SHAPE)
    return sample(np.flatnonzero(totals >= totals.max() - TIE).tolist(), 1, chance)


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
