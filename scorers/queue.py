"""Prefer endpoints with fewer requests ahead of a new one.

Type: `queue-scorer`.

The emptiest candidate scores 1 and the others fall linearly with their distance from it. The queue
of an endpoint is the larger of what its engine reports and what we sent there and has not answered
yet. An engine whose queue is not known scores 0 beside one whose queue is; where no engine's is
known, our own count decides alone.

Parameters:
- `minRange` (8; at least 1): how many requests more than the emptiest cost the whole score, unless
  the candidates differ by more. It damps: a difference of one request is 1/8 of the score, where
  plain min-max would make it all. 1 gives plain min-max.
- `maxRange` (none; at least `minRange`): an upper bound of the same number. Without it one
  overloaded endpoint makes all differences among the others vanish (fault B12).
- `runningWeight` (0; 0 to 1): how much a request that is being answered counts beside one that
  waits. Distances between running requests are measured against the emptiest's, or `minRange`
  where that is more: ten more are much beside none and little beside a hundred.

Formula: `1 - min(1, (queue - min) / clamp(max - min, minRange, maxRange)
+ runningWeight * (running - min) / max(min, minRange))`; all equal gives 1. With `minRange: 1` that
is min-max as in the Gateway API Inference Extension: 10/5/0 gives 0/0.5/1.

```yaml
- type: queue-scorer
  parameters:
    minRange: 8
    maxRange: 8
    runningWeight: 0.5
```
"""

from collections.abc import Sequence
from dataclasses import dataclass

from epp.framework import Endpoint, Load, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    min_range: float = 8.0
    max_range: float | None = None
    running_weight: float = 0.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.min_range < float("inf"):
            raise ValueError("minRange must be a finite number of at least 1")
        if self.max_range is not None and not self.min_range <= self.max_range < float("inf"):
            raise ValueError("maxRange must be finite and at least minRange")
        if not 0.0 <= self.running_weight <= 1.0:
            raise ValueError("runningWeight must lie between 0 and 1")

    def score(self, _: Request, endpoints: Sequence[Endpoint], /) -> list[float]:
        loads = [endpoint.load for endpoint in endpoints]
        depths = _depths(loads)
        known = [depth for depth in depths if depth is not None]
        if not known:
            return [0.0] * len(loads)
        least = min(known)
        span = max(float(max(known) - least), self.min_range)
        if self.max_range is not None:
            span = min(span, self.max_range)
        return [
            0.0 if depth is None else 1.0 - min(1.0, (depth - least) / span + running)
            for depth, running in zip(depths, self._running(loads), strict=True)
        ]

    def _running(self, loads: Sequence[Load]) -> list[float]:
        """What the running requests of each candidate cost."""
        if self.running_weight == 0.0:
            return [0.0] * len(loads)
        counts = [
            max(load.running or 0, load.reserved_requests - load.reserved_pending, 0)
            for load in loads
        ]
        least = min(counts)
        each = self.running_weight / max(float(least), self.min_range)
        return [each * (count - least) for count in counts]


def _depths(loads: Sequence[Load]) -> list[int | None]:
    """Requests ahead of a new one per candidate; None where nobody knows."""
    if any(load.waiting is not None for load in loads):
        return [load.queue if load.waiting is not None else None for load in loads]
    return [load.reserved_pending for load in loads]
