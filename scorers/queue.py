"""Prefer endpoints with fewer requests ahead of a new one.

Type: `queue-scorer`.

The emptiest candidate scores 1 and the others fall linearly with their distance from it. The queue
of an endpoint is the larger of what its engine reports and what we sent there and has not answered
yet, so that a burst is felt before the next report (fault B06). An engine whose queue is not known
scores 0 beside one whose queue is; where no engine's is known, our own count decides alone.

Parameters:
- `minRange` (1; at least 1): how many requests more than the emptiest cost the whole score, unless
  the candidates differ by more. It damps: with 8 a difference of one request is 1/8 of the score,
  where plain min-max makes it all.
- `maxRange` (none; at least `minRange`): an upper bound of the same number. Without it one
  overloaded endpoint makes all differences among the others vanish (fault B12).
- `runningWeight` (0; 0 to 1): how much a request that is being answered counts beside one that
  waits. Distances between running requests are measured against the emptiest's, or `minRange`
  where that is more: ten more are much beside none and little beside a hundred.

Formula: `1 - min(1, (queue - min) / clamp(max - min, minRange, maxRange)
+ runningWeight * (running - min) / max(min, minRange))`; all equal gives 1. The defaults make that
min-max as in the Gateway API Inference Extension: 10/5/0 gives 0/0.5/1.

```yaml
- type: queue-scorer
  parameters:
    minRange: 8
    maxRange: 8
    runningWeight: 0.5
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Column, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    consumes: ClassVar = frozenset({"engine-metrics", "inflight-load"})

    min_range: float = 1.0
    max_range: float | None = None
    running_weight: float = 0.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.min_range < float("inf"):
            raise ValueError("minRange must be a finite number of at least 1")
        if self.max_range is not None and not self.min_range <= self.max_range < float("inf"):
            raise ValueError("maxRange must be finite and at least minRange")
        if not 0.0 <= self.running_weight <= 1.0:
            raise ValueError("runningWeight must lie between 0 and 1")

    def score(self, _: Request, candidates: Candidates, /) -> Column:
        queues = candidates.queues()
        if not len(queues):
            return queues
        least = float(np.fmin.reduce(queues))
        span = max(float(np.fmax.reduce(queues)) - least, self.min_range)
        if self.max_range is not None:
            span = min(span, self.max_range)
        cost = (queues - least) / span
        if self.running_weight:
            cost = cost + self._running(candidates)
        return np.fmax(1.0 - cost, 0.0)

    def _running(self, candidates: Candidates) -> Column:
        """What the running requests of each candidate cost."""
        ours = candidates.column("reserved_requests") - candidates.column("reserved_pending")
        counts = np.maximum(np.fmax(candidates.column("running"), ours), 0.0)
        least = float(np.minimum.reduce(counts))
        return (counts - least) * (self.running_weight / max(least, self.min_range))
