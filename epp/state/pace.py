"""How fast an endpoint prefills and how long a pool's answers take. Estimates, always finite."""

from bisect import bisect_left, insort
from collections import deque

PRIOR_PREFILL_TOKENS_PER_S = 5_000.0
_SLOWEST, _FASTEST = 50.0, 1_000_000.0
_MIN_TOKENS = 64
"""Smaller prefills measure the network and the engine's step, not its speed."""


class PrefillPace:
    """Moving average of prefill speed in tokens per second."""

    __slots__ = ("_value", "_weight")

    def __init__(self, weight: float = 0.2) -> None:
        self._value: float | None = None
        self._weight = weight

    @property
    def measured(self) -> float | None:
        """Tokens per second, None before the first usable sample."""
        return self._value

    def observe(self, tokens: int, seconds: float) -> None:
        """`tokens` left the prefill queue within `seconds`. Tiny samples are ignored."""
        if tokens < _MIN_TOKENS or seconds <= 0:
            return
        sample = min(_FASTEST, max(_SLOWEST, tokens / seconds))
        self._value = (
            sample if self._value is None else self._value + self._weight * (sample - self._value)
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
