"""Rate the candidates of one request and choose. Pure: values in, a Decision out.

Every scorer rates every candidate between 0 and 1; the weighted sum decides. A number that is not
finite counts as 0 and one out of range is clamped, so that a faulty plugin can make a decision
poor but never undefined (faults B08, B09).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from epp.errors import EppError
from epp.framework import Candidates, Decision, Endpoint, Request, Rung, Scorer, ScoreRow, Source

from . import pickers
from .pickers import Chance

MAX_ROWS = 16
"""Candidates in a decision's score table, best first; the others are left out."""


class ScoringError(EppError):
    """A scorer did not rate each candidate once."""

    reason = "scoring"


@dataclass(frozen=True, slots=True)
class Weighted:
    """One scorer of a profile."""

    name: str
    scorer: Scorer
    weight: float

    def __post_init__(self) -> None:
        if not (isfinite(self.weight) and self.weight >= 0.0):
            raise ValueError(f"weight of {self.name} must be finite and not below 0")


@dataclass(frozen=True, slots=True)
class Profile:
    """Weighted scorers under one name. Raises ValueError for none, or for a name given twice."""

    name: str
    scorers: tuple[Weighted, ...]

    def __post_init__(self) -> None:
        names = [weighted.name for weighted in self.scorers]
        if not names:
            raise ValueError(f"profile {self.name} has no scorers")
        if len(set(names)) < len(names):
            raise ValueError(f"profile {self.name} has a scorer twice")

    @property
    def weights(self) -> dict[str, float]:
        return {weighted.name: weighted.weight for weighted in self.scorers}


def schedule(
    request: Request,
    candidates: Sequence[Endpoint],
    profile: Profile,
    chance: Chance,
    *,
    rung: Rung = Rung.PRECISE,
    count: int = 1,
    rows: int = MAX_ROWS,
) -> Decision:
    """Choose up to `count` of the candidates, of which there is at least one.

    `rows`: most candidates in the decision's table.

    Raises ScoringError, and whatever a scorer raises: the caller steps down the ladder.
    """
    columns, clamped = _rate(request, candidates, profile)
    totals = [0.0] * len(candidates)
    for weighted in profile.scorers:
        column = columns[weighted.name]
        for index, score in enumerate(column):
            totals[index] += weighted.weight * score
    chosen, tied = pickers.best(totals, count, chance)
    reasons = _reasons(request, candidates[chosen[0]], tied)
    return Decision(
        request_id=request.id,
        chosen=tuple(candidates[index] for index in chosen),
        rung=rung,
        reasons=(*reasons, *(f"{name} out of range" for name in clamped)),
        table=_table(candidates, totals, columns, chosen, rows),
        profile=profile.name,
        weights=profile.weights,
    )


def draw(
    request: Request, candidates: Sequence[Endpoint], chance: Chance, *, count: int = 1
) -> Decision:
    """Choose without rating: any candidate is as good as another. At least one candidate."""
    chosen = pickers.anyone(len(candidates), count, chance)
    return Decision(
        request_id=request.id,
        chosen=tuple(candidates[index] for index in chosen),
        rung=Rung.ANY_READY,
        reasons=(f"any of {len(candidates)} ready",),
        profile="random",
    )


def _rate(
    request: Request, candidates: Sequence[Endpoint], profile: Profile
) -> tuple[dict[str, list[float]], list[str]]:
    """A clean column of scores per scorer, and the scorers that had to be cleaned."""
    rated = Candidates.of(candidates)
    columns: dict[str, list[float]] = {}
    clamped: list[str] = []
    for weighted in profile.scorers:
        raw = weighted.scorer.score(request, rated)
        if len(raw) != len(candidates):
            raise ScoringError(
                f"{weighted.name} rated {len(raw)} of {len(candidates)} candidates; "
                "mend the plugin or take it out of the profile"
            )
        if all(0.0 <= score <= 1.0 for score in raw):
            columns[weighted.name] = [float(score) for score in raw]
        else:
            columns[weighted.name] = [_clamp(score) for score in raw]
            clamped.append(weighted.name)
    return columns, clamped


def _clamp(score: float) -> float:
    return min(1.0, max(0.0, score)) if isfinite(score) else 0.0


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


def _table(
    candidates: Sequence[Endpoint],
    totals: Sequence[float],
    columns: Mapping[str, Sequence[float]],
    chosen: Sequence[int],
    most: int,
) -> tuple[ScoreRow, ...]:
    """Rows of the chosen first, then of the best others."""
    order = sorted(range(len(totals)), key=totals.__getitem__, reverse=True)
    others = [index for index in order if index not in chosen]
    rows = [*chosen, *others][:most]
    return tuple(
        ScoreRow(
            endpoint=candidates[index].id,
            address=candidates[index].address,
            total=totals[index],
            scores={name: column[index] for name, column in columns.items()},
            match=candidates[index].match,
            queue=candidates[index].load.queue,
        )
        for index in rows
    )
