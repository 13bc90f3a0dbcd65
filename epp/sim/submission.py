"""What goes into a simulated engine and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from epp.errors import EppError
from epp.sim.kv import NO_NAMESPACE, KvEvent, Namespace


class ContextOverflowError(EppError):
    """Prompt and answer can never fit into the context of this engine."""

    reason = "context-overflow"
    status = 400


class QueueFullError(EppError):
    """As many requests wait as may wait."""

    reason = "queue-full"
    status = 503


class Ending(StrEnum):
    """Why a request ended; the values are those of `finish_reason`."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One sequence to compute."""

    id: str
    prompt: Sequence[int]
    """At least one token id, each an unsigned 32-bit number."""
    max_tokens: int
    """Tokens that the answer has, at least 1."""
    ends_by_itself: bool = False
    """Whether the model stops after `max_tokens` by its own will."""
    variant: int = 0
    """Tells apart several answers to one prompt."""
    namespace: Namespace = NO_NAMESPACE


@dataclass(frozen=True, slots=True)
class Finish:
    """Times of a request that ended, in the clock of `step`, and what it found in the cache."""

    ending: Ending
    arrived: float
    started: float
    """First batch that computed it."""
    first_token: float
    ended: float
    preemptions: int


@dataclass(frozen=True, slots=True)
class Output:
    """One token of one request."""

    id: str
    token: int
    index: int
    """0 for the first token of an answer."""
    cached_tokens: int
    """Prompt tokens that were in the cache when the request started."""
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """All that came out of one call."""

    outputs: tuple[Output, ...]
    events: tuple[KvEvent, ...]
    next_at: float | None
    """When to call again; None while there is nothing to do."""


@dataclass(slots=True)
class Counters:
    """Totals since the engine started."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    refused: int = 0
    """Requests that found the waiting queue full."""
    ended: dict[Ending, int] = field(default_factory=lambda: dict.fromkeys(Ending, 0))
