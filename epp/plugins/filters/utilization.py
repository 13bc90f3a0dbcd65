"""Keep endpoints whose load stays within limits.

Type: `utilization-filter`; alpha.

An endpoint must meet all conditions. A number that is not known cannot be above a limit: the pool
looks the same to this filter as when nothing is to do, and scorers sort such endpoints last.

Parameters:
- `conditions` (required): one or more of `metric` and `maxValue` (at least 0). `active-requests`:
  ours that have not ended. `running-requests`, `waiting-queue`: as the engine reports them.
  `kv-cache-utilization`: 0 to 1.
- `fallbackOnEmpty` (false): keep everybody where nobody meets them.
- `inFlightLoadProducerName`: name of a producer; load has one source here.

```yaml
- type: utilization-filter
  parameters:
    conditions:
      - {metric: running-requests, maxValue: 40}
      - {metric: kv-cache-utilization, maxValue: 0.8}
    fallbackOnEmpty: true
```
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from epp.framework import Candidates, Mask, Request, parameters

_COLUMNS = {
    "active-requests": "reserved_requests",
    "running-requests": "running",
    "waiting-queue": "waiting",
    "kv-cache-utilization": "kv_usage",
}


@parameters
class Condition:
    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    max_value: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.max_value < float("inf"):
            raise ValueError("maxValue must be a finite number of at least 0")
        if self.metric == "kv-cache-utilization" and self.max_value > 1.0:
            raise ValueError("maxValue of kv-cache-utilization is a share: at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    stability: ClassVar[str] = "alpha"
    consumes: ClassVar[frozenset[str]] = frozenset({"engine-metrics", "inflight-load"})
    without_effect: ClassVar[dict[str, str]] = {
        "in_flight_load_producer_name": "there is one count of what is under way",
    }
    conditions: tuple[Condition, ...]
    fallback_on_empty: bool = False
    in_flight_load_producer_name: str = ""

    def __post_init__(self) -> None:
        if not self.conditions:
            raise ValueError("conditions must name one at least")

    def keep(self, _: Request, candidates: Candidates, /) -> Mask:
        over = np.zeros(len(candidates), dtype=np.bool_)
        for condition in self.conditions:
            over |= candidates.column(_COLUMNS[condition.metric]) > condition.max_value
        return ~over if not self.fallback_on_empty or not over.all() else over
