"""How fast an endpoint computes prompts and writes answers, and how long a pool's answers take.

Estimates from what was seen of requests, always finite. A few odd samples move none of them: a
prompt that waited for something else, an answer that a client read slowly, a clock that jumped.
All windows are bounded, and belong to one life of an engine (or to a pool).
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from epp.framework import Speeds

PRIOR_PREFILL_TOKENS_PER_S = 5_000.0
_SLOWEST, _FASTEST = 50.0, 1_000_000.0
_MIN_TOKENS = 64
"""Smaller prefills measure the network and the engine's step, not its speed."""
ENOUGH = 3
"""Samples from which on an endpoint's own speed counts."""
_LIGHT = 8
"""No sample of a prefill weighs more than all together by this number."""
_SHORTEST_STEP_S, _LONGEST_STEP_S = 1e-4, 2.0
_MOST_BLOCK_S = 1e-3
_MIN_ANSWER_TOKENS = 8
"""Shorter answers measure how their bytes were cut into pieces."""
_LEVER_BLOCKS = 64
"""Samples whose loads differ by less say nothing of what a block costs."""
_REFIT_EVERY = 4
_USUAL = Speeds()


class TokenPace:
    """Tokens of prompts per second: the median of the last samples, each weighed by its tokens.

    Short prompts are slower by what every request costs, however short it is; so the long ones,
    which are what matters, have the say. But one alone never has: a long prompt that waited for
    something else would starve its endpoint. Up to eight samples weigh the same.
    """

    __slots__ = ("_by_speed", "_by_tokens", "_recent", "_value", "_window")

    def __init__(self, window: int = 32) -> None:
        self._window = window
        self._recent: deque[tuple[float, int]] = deque()
        """Samples, the oldest first."""
        self._by_speed: list[tuple[float, int]] = []
        """The same, ascending: to sort them anew for each would cost several times as much."""
        self._by_tokens: list[int] = []
        self._value: float | None = None

    @property
    def measured(self) -> float | None:
        """Tokens per second, None before there are `ENOUGH` usable samples."""
        return self._value

    def observe(self, tokens: int, seconds: float) -> None:
        """`tokens` were computed, or loaded, within `seconds`. Tiny samples are ignored."""
        if tokens < _MIN_TOKENS or not seconds > 0:
            return
        if len(self._recent) == self._window:
            self._forget(self._recent.popleft())
        sample = (min(_FASTEST, max(_SLOWEST, tokens / seconds)), tokens)
        self._recent.append(sample)
        insort(self._by_speed, sample)
        insort(self._by_tokens, tokens)
        if len(self._recent) >= ENOUGH:
            most = _heaviest(self._by_tokens)
            # `min` would be a call for each
            weights = [one if one < most else most for _, one in self._by_speed]  # noqa: FURB136
            self._value = self._by_speed[_middle(weights)][0]

    def _forget(self, sample: tuple[float, int]) -> None:
        del self._by_speed[bisect_left(self._by_speed, sample)]
        del self._by_tokens[bisect_left(self._by_tokens, sample[1])]


def _heaviest(ordered: list[int]) -> float:
    """What the heaviest of these weights, ascending, are cut to, so that none weighs more than an
    eighth of all that is left."""
    rest = sum(ordered)
    for cut in range(min(_LIGHT, len(ordered) - 1)):
        most = rest / (_LIGHT - cut)
        if ordered[-1 - cut] <= most:
            return most
        rest -= ordered[-1 - cut]
    return ordered[0]


def _middle(weights: list[float]) -> int:
    """Where half of their sum is reached."""
    half = sum(weights) / 2
    for place, weight in enumerate(weights):
        half -= weight
        if half <= 0:
            return place
    return len(weights) - 1


@dataclass(frozen=True, slots=True)
class Steps:
    """What one step of an engine takes while it writes answers."""

    base_s: float
    """With one answer, of few blocks."""
    block_s: float | None
    """What each block in use adds. None: the load never varied enough to tell."""


class DecodePace:
    """Seconds between the tokens of an answer, by the blocks in use: a line through the samples.

    Its slope is the median of those between any two samples (Theil and Sen), its height the median
    of what is left then; both bear with nearly a third of samples being nonsense.
    """

    __slots__ = ("_prior_block_s", "_recent", "_since", "_steps")

    def __init__(self, *, prior_block_s: float, window: int = 32) -> None:
        """`prior_block_s` stands for the slope while that cannot be told."""
        self._prior_block_s = prior_block_s
        self._recent: deque[tuple[float, float]] = deque(maxlen=window)
        self._since = 0
        self._steps: Steps | None = None

    @property
    def measured(self) -> Steps | None:
        """None before there are `ENOUGH` usable samples."""
        return self._steps

    def observe(self, tokens: int, seconds: float, blocks: float) -> None:
        """An answer of `tokens` took `seconds` from its first token to its end, while `blocks` were
        in use on average. Short answers are ignored."""
        if tokens < _MIN_ANSWER_TOKENS or not seconds > 0 or not 0 <= blocks < float("inf"):
            return
        step = seconds / (tokens - 1)
        if not _SHORTEST_STEP_S <= step <= _LONGEST_STEP_S:
            return
        self._recent.append((blocks, step))
        self._since += 1
        count = len(self._recent)
        if count >= ENOUGH and (count <= 2 * ENOUGH or self._since >= _REFIT_EVERY):
            self._since = 0
            self._steps = self._fitted()

    def _fitted(self) -> Steps:
        samples = np.array(self._recent)
        blocks, step = samples[:, 0], samples[:, 1]
        first, second = _pairs(len(samples))
        apart = blocks[second] - blocks[first]
        telling = np.abs(apart) >= _LEVER_BLOCKS
        slope = None
        if np.count_nonzero(telling) >= len(samples):
            rise = (step[second] - step[first])[telling] / apart[telling]
            slope = min(_MOST_BLOCK_S, max(0.0, _median(rise)))
        left = step - blocks * (self._prior_block_s if slope is None else slope)
        base = min(_LONGEST_STEP_S, max(_SHORTEST_STEP_S, _median(left)))
        return Steps(base, slope)


@lru_cache(maxsize=128)
def _pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Any two of so many, by their places."""
    first, second = np.triu_indices(count, 1)
    return first, second


def _median(values: NDArray[np.float64]) -> float:
    """Of one at least. Takes half of what numpy's own does."""
    half = len(values) // 2
    ordered = np.partition(values, (half - 1, half))
    if len(values) % 2:
        return ordered.item(half)
    return (ordered.item(half - 1) + ordered.item(half)) / 2


class InUse:
    """How many blocks an engine had in use lately: its last reports, thinned out."""

    __slots__ = ("_recent",)

    EVERY_S = 0.25

    def __init__(self, window: int = 120) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=window)

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, blocks: float, now: float) -> None:
        if not self._recent or now - self._recent[-1][0] >= self.EVERY_S:
            self._recent.append((now, blocks))

    def mean_since(self, at: float) -> float | None:
        """Of the reports from then on, else the last one before. None without any."""
        total, count = 0.0, 0
        for when, blocks in reversed(self._recent):
            if when < at and count:
                break
            total, count = total + blocks, count + 1
            if when < at:
                break
        return total / count if count else None


class Paces:
    """What is known of the speeds of one life of an engine, or of all of a pool together."""

    __slots__ = ("decoding", "in_use", "prefill")

    def __init__(self, window: int = 32) -> None:
        self.prefill = TokenPace(window)
        self.decoding = DecodePace(prior_block_s=_USUAL.decode_s_per_block, window=window)
        self.in_use = InUse()

    def speeds(self, prefill_tokens_per_s: float) -> tuple[float, float, float]:
        """Prompt tokens per second, seconds of a step, and what a block in use adds to it; what was
        not observed as is usual, with this prefill speed."""
        steps = self.decoding.measured
        if steps is None:
            step_s, block_s = _USUAL.decode_s_per_token, None
        else:
            step_s, block_s = steps.base_s, steps.block_s
        usual_s = _USUAL.decode_s_per_block
        return (
            self.prefill.measured or prefill_tokens_per_s,
            step_s,
            usual_s if block_s is None else block_s,
        )


class Durations:
    """The last answers' durations, and their 99th percentile."""

    __slots__ = ("_cap_s", "_floor_s", "_min_samples", "_order", "_prior_s", "_recent", "_window")

    def __init__(
        self,
        *,
        window: int = 1024,
        prior_s: float = 60.0,
        floor_s: float = 1.0,
        cap_s: float = 900.0,
        min_samples: int = 20,
    ) -> None:
        self._window = window
        self._prior_s = prior_s
        self._floor_s = floor_s
        self._cap_s = cap_s
        self._min_samples = min_samples
        self._recent: deque[float] = deque()
        self._order: list[float] = []

    def add(self, seconds: float) -> None:
        if not 0 <= seconds < float("inf"):
            return
        if len(self._recent) == self._window:
            oldest = self._recent.popleft()
            del self._order[bisect_left(self._order, oldest)]
        self._recent.append(seconds)
        insort(self._order, seconds)

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def p99_s(self) -> float:
        """Within floor and cap; the prior until there are enough samples."""
        if len(self._order) < self._min_samples:
            return self._prior_s
        value = self._order[min(len(self._order) - 1, int(len(self._order) * 0.99))]
        return min(self._cap_s, max(self._floor_s, value))
