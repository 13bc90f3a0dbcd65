"""Why a request went where it went: the last decisions, with every scorer's numbers.

Prompts never come here, only sizes, ids and reasons. Text that a client chose (model, path) is cut.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from epp.errors import Refusal
from epp.framework import Decision, Endpoint, Match, Request, ScoreRow

MAX_DECISIONS = 1000
MAX_TEXT = 200
"""Characters of a model or a path."""


@dataclass(frozen=True, slots=True)
class _Entry:
    at: float
    took_s: float
    why: str
    decision: Decision
    request: Request


class Explain:
    """An observer that remembers. `wall` gives seconds of Unix time."""

    def __init__(self, *, wall: Callable[[], float], limit: int = MAX_DECISIONS) -> None:
        self._wall = wall
        self._entries: deque[_Entry] = deque(maxlen=limit)

    def __len__(self) -> int:
        return len(self._entries)

    def decided(self, decision: Decision, request: Request, why: str, took_s: float) -> None:
        self._entries.append(_Entry(self._wall(), took_s, why, decision, request))

    def refused(self, refusal: Refusal) -> None:
        """Nothing was decided; the refusal itself says why."""

    def failed(self, step: str) -> None:
        """Shows in the rung and the reasons of the decision that follows."""

    def ignored(self, header: str) -> None:
        """Says nothing about a decision."""

    def answered(self, request: Request, status: int, *, as_told: bool) -> None:
        """Not part of a decision."""

    def last(self, limit: int = MAX_DECISIONS, request_id: str | None = None) -> list[Any]:
        """Decisions as plain JSON values, the newest first."""
        found: list[Any] = []
        for entry in reversed(self._entries):
            if len(found) >= limit:
                break
            if request_id is None or entry.request.id == request_id:
                found.append(_plain(entry))
        return found


def _plain(entry: _Entry) -> dict[str, Any]:
    decision, request = entry.decision, entry.request
    return {
        "request_id": request.id,
        "at": entry.at,
        "took_ms": round(entry.took_s * 1000, 3),
        "api": request.api,
        "path": _cut(request.path),
        "model": _cut(request.model),
        "target_model": _cut(request.target_model),
        "objective": request.objective,
        "fairness_id": request.fairness_id,
        "priority": request.priority,
        "prompt_tokens": request.prompt_tokens,
        "exact": request.exact,
        "blocks": request.blocks,
        "rung": decision.rung.name.lower(),
        "why": entry.why,
        "reasons": list(decision.reasons),
        "chosen": _named(decision.chosen),
        "profile": decision.profile,
        "weights": dict(decision.weights),
        "table": [_row(row) for row in decision.table],
        "split": decision.split,
        "whole": request.whole,
        "prefill": {
            "candidates": _named(decision.prefill),
            "weights": dict(decision.prefill_weights),
            "table": [_row(row) for row in decision.prefill_table],
        },
    }


def _named(endpoints: Sequence[Endpoint]) -> list[dict[str, str]]:
    return [{"endpoint": str(one.id), "address": one.address} for one in endpoints]


def _cut(text: str) -> str:
    """A client's text, bounded, and printable as JSON whatever bytes it came from."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()


def _row(row: ScoreRow) -> dict[str, Any]:
    return {
        "endpoint": str(row.endpoint),
        "address": row.address,
        "total": round(row.total, 6),
        "scores": {name: round(score, 6) for name, score in row.scores.items()},
        "match": match(row.match),
        "queue": row.queue,
    }


def match(held: Match) -> dict[str, Any]:
    return {"tokens": held.tokens, "source": str(held.source), "trust": round(held.trust, 4)}
