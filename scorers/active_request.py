"""Prefer endpoints with fewer of the requests that we sent and that have not ended.

Type: `active-request-scorer`.

Counts at once and needs no report of an engine. An idle endpoint scores 1; the busiest 0.

Parameters:
- `idleThreshold` (0; at least 0): an endpoint with that many or fewer is idle.
- `maxBusyScore` (1.0; 0 to 1): what endpoints that are not idle can score at most. Below 1 it makes
  a gap, so that an idle one wins against scorers of more weight.
- `inFlightLoadProducerName` (none): which `inflight-load-producer` counts. There is one here; a
  name that no entry has is refused.
- `requestTimeout` (none): of older configurations, and without effect: a request counts until its
  stream ends (fault B14).

Formula: `1` up to `idleThreshold`, else `(max - requests) / max * maxBusyScore` (rule of the
Gateway API Inference Extension's llm-d router): 3/0/6 gives 0.5/1/0.

```yaml
- type: active-request-scorer
  parameters:
    idleThreshold: 2
    maxBusyScore: 0.5
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Column, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRequest:
    consumes: ClassVar = frozenset({"inflight-load"})
    without_effect: ClassVar = {
        "in_flight_load_producer_name": "there is one count of what is under way",
        "request_timeout": "a request counts until its stream ends",
    }

    idle_threshold: int = 0
    max_busy_score: float = 1.0
    in_flight_load_producer_name: str = ""
    request_timeout: str = ""

    def __post_init__(self) -> None:
        if self.idle_threshold < 0:
            raise ValueError("idleThreshold must be at least 0")
        if not 0.0 <= self.max_busy_score <= 1.0:
            raise ValueError("maxBusyScore must lie between 0 and 1")

    def score(self, _: Request, candidates: Candidates, /) -> Column:
        counts = candidates.column("reserved_requests")
        most = np.maximum.reduce(counts, initial=1.0)
        busy = (most - counts) * (self.max_busy_score / most)
        return np.where(counts <= self.idle_threshold, 1.0, busy)
