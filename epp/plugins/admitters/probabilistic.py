"""Refuse the more of what may be shed, the fuller the pool is.

Type: `probabilistic-admitter`.

Requests with a priority below 0 are refused by chance; the others are always served. So the load of
a pool is trimmed before it is full, where `saturationDetector` refuses all of them.

Parameters:
- `queueDepthThreshold` (5; above 0): waiting requests at which an endpoint is full.
- `kvCacheUtilThreshold` (0.8; above 0, at most 1): use of the KV cache at which it is.
- `power` (5; above 0), `k` (300; above 0): see the formula.

Formula: refused with the probability `min(1, k * fullness^power)`, where `fullness` is the mean
over endpoints of `max(waiting / queueDepthThreshold, usage / kvCacheUtilThreshold)` (rule of the
Gateway API Inference Extension's llm-d router).

```yaml
- type: probabilistic-admitter
  parameters:
    k: 100
```
"""

from dataclasses import dataclass
from math import exp, log
from typing import ClassVar

from epp.framework import Candidates, Chance, Request
from epp.framework.fullness import FULL_KV_CACHE, FULL_QUEUE, mean_fullness


@dataclass(frozen=True, slots=True, kw_only=True)
class Probabilistic:
    consumes: ClassVar[frozenset[str]] = frozenset({"engine-metrics"})
    queue_depth_threshold: int = FULL_QUEUE
    kv_cache_util_threshold: float = FULL_KV_CACHE
    power: float = 5.0
    k: float = 300.0

    def __post_init__(self) -> None:
        if self.queue_depth_threshold <= 0:
            raise ValueError("queueDepthThreshold must be above 0")
        if not 0.0 < self.kv_cache_util_threshold <= 1.0:
            raise ValueError("kvCacheUtilThreshold must be above 0 and at most 1")
        for name in ("power", "k"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a finite number above 0")

    def admits(self, request: Request, candidates: Candidates, chance: Chance, /) -> bool:
        if request.priority >= 0 or not len(candidates):
            return True
        full = mean_fullness(candidates, self.queue_depth_threshold, self.kv_cache_util_threshold)
        if full <= 0.0:
            return True
        # By logarithms: the power of a large number has no room in a float.
        return chance.random() >= exp(min(0.0, self.power * log(full) + log(self.k)))
