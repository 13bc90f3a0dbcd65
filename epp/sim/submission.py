"""What goes into a simulated engine and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from epp.errors import EppError
from epp.sim.hashing import NO_NAMESPACE, Namespace
from epp.sim.kv import KvEvent
from epp.sim.transfer import NO_TRANSFER, Offer, PullAsk, Transfer


class ContextOverflowError(EppError):
    """Prompt and answer can never fit into the context of this engine."""

    reason = "context-overflow"
    status = 400


class QueueFullError(EppError):
    """As many requests wait as may wait."""

    reason = "queue-full"
    status = 503


class EngineDeadError(EppError):
    """The engine died of a request that it was not up to; only a new life helps."""

    reason = "engine-dead"
    status = 500

    def __init__(self) -> None:
        super().__init__(
            "EngineCore encountered an issue. See stack trace (above) for the root cause."
        )


class Ending(StrEnum):
    """Why a request ended; the values are those of `finish_reason`."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"
    ERROR = "error"
    """The KV that it should have pulled could not be had."""


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
    transfer: Transfer = NO_TRANSFER


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
    offer: Offer | None = None
    """Blocks that stay pinned for a decode engine."""


@dataclass(frozen=True, slots=True)
class Pull:
    """Work for whoever connects engines: read `blocks` from another one, then tell this one."""

    id: str
    ask: PullAsk
    blocks: tuple[int, ...]
    """Those of `ask.blocks` that are not cached here."""
    duration_s: float
    """How long the transfer takes once the other engine has been reached."""


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
    pulls: tuple[Pull, ...] = ()
    """Each wants exactly one call of `Engine.pulled` or `Engine.pull_failed`."""
    returns: tuple[PullAsk, ...] = ()
    """Blocks elsewhere that nobody will read any more: their engine should be told."""
    failed: tuple[str, ...] = ()
    """Requests that ended because their KV could not be pulled."""


@dataclass(slots=True)
class Counters:
    """Totals since the engine started."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    gaps: int = 0
    """From one token of an answer to the next."""
    gap_seconds: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    pulled_tokens: int = 0
    """Prompt tokens whose KV came from another engine."""
    pulls: int = 0
    """Transfers that worked."""
    pulled_blocks: int = 0
    pull_seconds: float = 0.0
    failed_pulls: int = 0
    fetched_blocks: int = 0
    """Cached blocks that came from another engine's cache."""
    preemptions: int = 0
    refused: int = 0
    """Requests that found the waiting queue full."""
    ended: dict[Ending, int] = field(default_factory=lambda: dict.fromkeys(Ending, 0))

    @property
    def computed_prompt_tokens(self) -> int:
        """Prompt tokens that this engine computed itself. The last token of a pulled prompt, which
        is computed again for its answer, does not count."""
        return self.prompt_tokens - self.cached_tokens - self.pulled_tokens

    def start(self, prompt: int, cached: int, pulled: int = 0) -> None:
        """Count a prompt: its tokens, those found in the cache and those pulled from elsewhere."""
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.prefix_queries += prompt
        self.prefix_hits += cached
        self.pulled_tokens += pulled
