"""Why a request went where it went: the last decisions, with every scorer's numbers.

Prompts and headers never come here, only sizes, ids and reasons. Text that a client chose (its own
request id, model, path) is cut.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from epp import protocol
from epp.errors import Refusal
from epp.framework import Decision, Endpoint, Match, Request, ScoreRow, Stage

MAX_DECISIONS = 1000
MAX_TEXT = 200
"""Characters of a client's request id, a model or a path."""


_told = attrgetter(
    "api",
    "objective",
    "fairness_id",
    "priority",
    "prompt_tokens",
    "media_tokens",
    "output_tokens",
    "exact",
    "blocks",
    "whole",
    "attempt",
    "slo_ttft_s",
    "slo_tpot_s",
    "timeout_s",
)


class _Entry:
    """What is kept of a decision: not the request, which holds headers and block keys."""

    __slots__ = ("at", "decision", "model", "path", "target_model", "told", "took_s", "why", "x_id")

    def __init__(
        self, at: float, took_s: float, why: str, decision: Decision, request: Request
    ) -> None:
        self.at = at
        self.took_s = took_s
        self.why = why
        self.decision = decision
        self.x_id = _cut(request.headers.get(protocol.REQUEST_ID, ""))
        self.path = _cut(request.path)
        self.model = _cut(request.model)
        self.target_model = _cut(request.target_model)
        self.told: tuple[Any, ...] = _told(request)
        """In the order of `_told`."""


class Explain:
    """An observer that remembers."""

    def __init__(
        self, *, wall: Callable[[], float], replica: str = "", limit: int = MAX_DECISIONS
    ) -> None:
        """`wall` gives seconds of Unix time. `replica` is the name of this picker."""
        self.replica = replica
        self._wall = wall
        self._entries: deque[_Entry] = deque(maxlen=limit)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def now(self) -> float:
        """Seconds of Unix time, by the clock of the decisions."""
        return self._wall()

    @property
    def since(self) -> float | None:
        """When the oldest decision that is kept was made, seconds of Unix time."""
        return self._entries[0].at if self._entries else None

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

    def shadowed(self, request: Request, *, agreed: bool | None) -> None:
        """Not part of a decision, either."""

    def last(self, limit: int = MAX_DECISIONS, request_id: str | None = None) -> list[Any]:
        """Decisions as plain JSON values, the newest first.

        `request_id`: only those of that name, ours or the client's. The client's may name several:
        it is free to use one twice, and a gateway that tries again keeps it.
        """
        wanted = None if request_id is None else _cut(request_id)
        found: list[Any] = []
        for entry in reversed(self._entries):
            if len(found) >= limit:
                break
            if wanted is None or wanted in (entry.decision.request_id, entry.x_id):
                found.append(_plain(entry))
        return found

    def unkept(self, decision: Decision, request: Request, why: str, took_s: float) -> Any:
        """A decision that nobody asked to carry out, in the same form."""
        return _plain(_Entry(self._wall(), took_s, why, decision, request))


def _asked(entry: _Entry) -> dict[str, Any]:
    """What the request was."""
    api, objective, fairness_id, priority, *sizes = entry.told
    prompt, media, output, exact, blocks, whole, attempt, *limits = sizes
    names = ("first_token", "next_token", "all")
    return {
        "x_request_id": entry.x_id,
        "api": api,
        "path": entry.path,
        "model": entry.model,
        "target_model": entry.target_model,
        "objective": objective,
        "fairness_id": fairness_id,
        "priority": priority,
        "prompt_tokens": prompt,
        "media_tokens": media,
        "output_tokens": output,
        "exact": exact,
        "blocks": blocks,
        "whole": whole,
        "attempt": attempt,
        "within_ms": {
            name: round(limit_s * 1000, 3)
            for name, limit_s in zip(names, limits, strict=True)
            if limit_s is not None
        },
    }


def _plain(entry: _Entry) -> dict[str, Any]:
    decision = entry.decision
    return {
        "request_id": decision.request_id,
        "at": entry.at,
        "took_ms": round(entry.took_s * 1000, 3),
        **_asked(entry),
        "rung": decision.rung.name.lower(),
        "why": entry.why,
        "reasons": list(decision.reasons),
        "chosen": _named(decision.chosen),
        "plan": decision.plan,
        "handler": decision.handler,
        "profile": decision.profile,
        "weights": dict(decision.weights),
        "table": [_row(row, decision.weights) for row in decision.table],
        "loaded": _loaded(decision.chosen),
        "excluded": _excluded(decision.excluded),
        "left_out": dict(decision.left_out),
        "split": decision.split,
        "prefill": _stage(decision.prefilling),
        "encode": {"why": decision.encoding.why, **_stage(decision.encoding)},
    }


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "candidates": _named(stage.chosen),
        "profile": stage.profile,
        "decider": stage.decider,
        "weights": dict(stage.weights),
        "table": [_row(row, stage.weights) for row in stage.table],
        "excluded": _excluded(stage.excluded),
        "left_out": dict(stage.left_out),
    }


def _named(endpoints: Sequence[Endpoint]) -> list[dict[str, str]]:
    return [{"endpoint": str(one.id), "address": one.address} for one in endpoints]


def _loaded(endpoints: Sequence[Endpoint]) -> dict[str, dict[str, int]]:
    """Tokens of the prompt that come from slower tiers, of those that were chosen."""
    return {str(one.id): dict(one.match.loaded) for one in endpoints if one.match.loaded}


def _excluded(those: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"address": address, "reason": reason} for address, reason in those]


def _cut(text: str) -> str:
    """A client's text, bounded, and printable as JSON whatever bytes it came from."""
    if len(text) <= MAX_TEXT and text.isascii():
        return text
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()


def _row(row: ScoreRow, weights: Mapping[str, float]) -> dict[str, Any]:
    return {
        "endpoint": str(row.endpoint),
        "address": row.address,
        "total": round(row.total, 6),
        "scores": {name: round(score, 6) for name, score in row.scores.items()},
        "weighted": {
            name: round(weights.get(name, 0.0) * score, 6) for name, score in row.scores.items()
        },
        "match": match(row.match),
        "queue": row.queue,
    }


def match(held: Match) -> dict[str, Any]:
    return {"tokens": held.tokens, "source": str(held.source), "trust": round(held.trust, 4)}
