"""Call a pool full by the queues and the KV cache of its endpoints.

Type: `utilization-detector`.

Says how full the pool is: 1.0 is full, and requests with a priority below 0 are refused then. In a
profile it is a filter as well: endpoints stay that are below their limits, and all where nobody is.
An endpoint of which nothing is known is full.

Parameters:
- `queueDepthThreshold` (5; above 0): waiting requests at which an endpoint is full.
- `kvCacheUtilThreshold` (0.8; above 0, at most 1): use of the KV cache at which it is.
- `headroom` (0; at least 0): share by which an endpoint may be beyond them before the filter leaves
  it out; 0.2 is a fifth.
- `metricsStalenessThreshold` (200ms): without effect; all plugins see one age of reports, beyond
  which they are not known.

Formula: mean over endpoints of `max(waiting / queueDepthThreshold, usage / kvCacheUtilThreshold)`
(rule of the Gateway API Inference Extension's llm-d router).

```yaml
- type: utilization-detector
  parameters:
    queueDepthThreshold: 10
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Mask, Request, Seconds
from epp.framework.fullness import FULL_KV_CACHE, FULL_QUEUE, mean_fullness


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    consumes: ClassVar[frozenset[str]] = frozenset({"engine-metrics"})
    spelled: ClassVar[dict[str, str]] = {"kv_cache_util_threshold": "kvCacheUtilThreshold"}
    without_effect: ClassVar[dict[str, str]] = {
        "metrics_staleness_threshold": "what is older than two seconds is not known to any plugin",
    }
    queue_depth_threshold: int = FULL_QUEUE
    kv_cache_util_threshold: float = FULL_KV_CACHE
    metrics_staleness_threshold: Seconds = 0.2
    headroom: float = 0.0

    def __post_init__(self) -> None:
        if self.queue_depth_threshold <= 0:
            raise ValueError("queueDepthThreshold must be above 0")
        if not 0.0 < self.kv_cache_util_threshold <= 1.0:
            raise ValueError("kvCacheUtilThreshold must be above 0 and at most 1")
        if not 0.0 <= self.headroom < float("inf"):
            raise ValueError("headroom must be a finite number of at least 0")

    def saturation(self, candidates: Candidates, /) -> float:
        return mean_fullness(candidates, self.queue_depth_threshold, self.kv_cache_util_threshold)

    def keep(self, _: Request, candidates: Candidates, /) -> Mask:
        waiting, usage = candidates.column("waiting"), candidates.column("kv_usage")
        over = waiting >= self.queue_depth_threshold * (1.0 + self.headroom)
        over |= usage >= self.kv_cache_util_threshold * (1.0 + self.headroom)
        over |= np.isnan(waiting) & np.isnan(usage)
        return ~over if not over.all() else over
