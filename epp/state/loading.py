"""How fast engines load from slower tiers of their KV cache: by their answers, else as is usual.

No engine's page tells it so that all could be compared: vLLM's loading time is summed over its
ranks, and over the threads that read a disk. But an answer does: of a prompt that was loaded for
the most part, the time to the first token is loading, less what the rest takes to compute. Only
prompts teach that had the engine to themselves when they came, came from one tier, and of which the
engine says that it had them cached. What every request costs is in it too, so that short loads
measure too little; as with prefills the long ones have the say.

Until a life has taught enough, what all of the pool have is used, until then what is usual of such
a tier. What nobody teaches any more is forgotten: or a tier that was slow once, and is avoided
since, would never be tried again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from epp.framework import Column, Endpoint, Incarnation, Speeds

from .pace import TokenPace
from .prefix.tiers import MAX_TIERS, tier_of
from .records import Done

LEAST_TOKENS = 512
"""Smaller loads measure the network and the engine's step."""
LEVER = 8
"""So many times the computed tokens must have been loaded, or computing is most of the time."""
_LEAST_SHARE = 0.25
"""Of the time, however long computing is thought to take."""
_LEAST_STEP_S = 1e-3
"""From token to token of an answer that comes in pieces."""
KEPT_S = 600.0
"""After its last sample a speed is forgotten."""
_USUAL = Speeds().load_tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One prompt that an engine loaded in part."""

    tier: str
    tokens: int
    """That came from the tier."""
    computed: int
    """That it computed itself."""
    ttft_s: float


@dataclass(slots=True)
class _Pace:
    tokens: TokenPace = field(default_factory=TokenPace)
    at: float = 0.0

    def speed(self, now: float) -> float | None:
        return self.tokens.measured if now - self.at <= KEPT_S else None


def shown_by(done: Done, endpoint: Endpoint) -> Loaded | None:
    """What a request that has ended says of the tiers of `endpoint`, as its decision saw that; None
    where it says nothing."""
    match, load = endpoint.match, endpoint.load
    if len(match.loaded) != 1 or load.reserved_pending or load.waiting:
        return None
    prompt, cached, first = done.prompt_tokens, done.cached_tokens, done.ttft_s
    if prompt is None or cached is None or first is None or not _came_in_pieces(done, first):
        return None
    if cached < match.tokens:  # it was gone, and computed again
        return None
    ((tier, tokens),) = match.loaded
    return Loaded(tier=tier, tokens=tokens, computed=max(0, prompt - cached), ttft_s=first)


def _came_in_pieces(done: Done, first_s: float) -> bool:
    """The first byte of an answer that comes whole is that of its end."""
    if done.duration_s is None or done.completion_tokens is None:
        return False
    return done.duration_s - first_s >= (done.completion_tokens - 1) * _LEAST_STEP_S


class Loading:
    """What one pool's lives have shown, tier by tier: bounded by its lives and the index's tiers.

    `told` is the operator's word, tokens per second by the tier's name; it always counts.
    """

    def __init__(self, told: Mapping[str, float]) -> None:
        self._told = told
        self._pool: dict[str, _Pace] = {}
        self._lives: dict[Incarnation, dict[str, _Pace]] = {}
        self._columns: dict[str, tuple[Sequence[Incarnation], float, Column]] = {}

    def __len__(self) -> int:
        return len(self._pool) + sum(map(len, self._lives.values()))

    def observe(
        self, inc: Incarnation, seen: Loaded, prefill_tokens_per_s: float, now: float
    ) -> None:
        """A prompt's first token came. What says little is left out."""
        if seen.tokens < max(LEAST_TOKENS, LEVER * seen.computed) or not seen.ttft_s > 0:
            return
        seconds = seen.ttft_s - seen.computed / prefill_tokens_per_s
        seconds = max(seconds, _LEAST_SHARE * seen.ttft_s)
        for paces in (self._pool, self._lives.setdefault(inc, {})):
            pace = _of(paces, seen.tier)
            if now - pace.at > KEPT_S:
                pace.tokens = TokenPace()
            pace.tokens.observe(seen.tokens, seconds)
            pace.at = now
        self._columns.pop(seen.tier, None)

    def forget(self, inc: Incarnation) -> None:
        """That life is over."""
        if self._lives.pop(inc, None) is not None:
            self._columns.clear()

    def speeds(self, tier: str, lives: Sequence[Incarnation], now: float) -> Column:
        """Tokens per second that each of `lives` loads from this tier."""
        known = self._columns.get(tier)
        if known is not None and known[0] is lives and now < known[1]:
            return known[2]
        column = np.full(len(lives), self._common(tier, now))
        if tier not in self._told:
            for row, inc in enumerate(lives):
                pace = self._lives.get(inc, {}).get(tier)
                own = None if pace is None else pace.speed(now)
                if own is not None:
                    column[row] = own
        self._columns[tier] = lives, now + 0.1 * KEPT_S, column
        return column

    def known(self, now: float) -> Iterator[tuple[str, float]]:
        """Tiers whose speed was told, or of which the pool has shown enough."""
        yield from self._told.items()
        for tier, pace in self._pool.items():
            speed = pace.speed(now)
            if speed is not None and tier not in self._told:
                yield tier, speed

    def _common(self, tier: str, now: float) -> float:
        """Of lives that have not shown their own."""
        told = self._told.get(tier)
        if told is not None:
            return told
        pace = self._pool.get(tier)
        learnt = None if pace is None else pace.speed(now)
        return _USUAL * tier_of(tier).pace if learnt is None else learnt


def _of(paces: dict[str, _Pace], tier: str) -> _Pace:
    """The oldest makes room for a new one where there are as many as an index has tiers."""
    if tier not in paces and len(paces) >= MAX_TIERS:
        del paces[min(paces, key=lambda name: paces[name].at)]
    return paces.setdefault(tier, _Pace())
