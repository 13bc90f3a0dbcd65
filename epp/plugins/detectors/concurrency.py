"""Call a pool full by the requests or tokens under way in it.

Type: `concurrency-detector`.

Says how full the pool is: 1.0 is full, and requests with a priority below 0 are refused then. In a
profile it is a filter as well: endpoints stay that are below their limits, and all where nobody is.
What counts is what the replicas have charged, not what engines report.

Parameters:
- `concurrencyMode` (`requests`; or `tokens`, `hybrid`): what is counted; `hybrid` goes by whichever
  of the two is nearer to its limit.
- `maxConcurrency` (100; above 0): requests under way at which an endpoint is full.
- `maxTokenConcurrency` (1000000; above 0): prompt tokens to compute at which it is.
- `headroom` (0; at least 0): share by which an endpoint may be beyond them before the filter leaves
  it out; 0.2 is a fifth.
- `inFlightLoadProducerName`: without effect; there is one count of what is under way.

Formula: `sum of what is under way / (endpoints * limit)` (rule of the Gateway API Inference
Extension's llm-d router).

```yaml
- type: concurrency-detector
  parameters:
    maxConcurrency: 64
```
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from epp.framework import Candidates, Mask, Request
from epp.framework.fullness import FULL

_COUNTED = {
    "requests": ("reserved_requests",),
    "tokens": ("reserved_prefill_tokens",),
    "hybrid": ("reserved_requests", "reserved_prefill_tokens"),
}
"""Columns of each mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    consumes: ClassVar[frozenset[str]] = frozenset({"inflight-load"})
    without_effect: ClassVar[dict[str, str]] = {
        "in_flight_load_producer_name": "there is one count of what is under way",
    }
    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    max_concurrency: int = 100
    max_token_concurrency: int = 1_000_000
    headroom: float = 0.0
    in_flight_load_producer_name: str = ""

    def __post_init__(self) -> None:
        if self.max_concurrency <= 0:
            raise ValueError("maxConcurrency must be above 0")
        if self.max_token_concurrency <= 0:
            raise ValueError("maxTokenConcurrency must be above 0")
        if not 0.0 <= self.headroom < float("inf"):
            raise ValueError("headroom must be a finite number of at least 0")

    def saturation(self, candidates: Candidates, /) -> float:
        if not len(candidates):
            return FULL
        return max(
            float(candidates.column(name).mean()) / self._limit(name)
            for name in _COUNTED[self.concurrency_mode]
        )

    def keep(self, _: Request, candidates: Candidates, /) -> Mask:
        over = np.zeros(len(candidates), dtype=np.bool_)
        for name in _COUNTED[self.concurrency_mode]:
            limit = int(self._limit(name) * (1.0 + self.headroom))
            over |= candidates.column(name) >= limit
        return ~over if not over.all() else over

    def _limit(self, name: str) -> int:
        requests = name == "reserved_requests"
        return self.max_concurrency if requests else self.max_token_concurrency
