"""Keep endpoints that are expected to meet the times that the request asks for.

Type: `slo-headroom-tier-filter`.

Where some endpoints are expected to meet the request's limits and others are not, one of the two
groups stays: nearly always the first, now and then the second, so that an endpoint that recovers is
found. All stay where the request names no limit, and where the endpoints do not differ in this.
An endpoint of which nothing is expected is one that does not meet them.

Parameters:
- `epsilonExploreNeg` (0.01; 0 to 1): share of requests that go to the second group. The request's
  id draws, so that a decision can be repeated.

Formula: an endpoint is in the first group when `limit - expected >= 0` for each limit that the
request names, of `x-llm-d-slo-ttft-ms` and `x-llm-d-slo-tpot-ms` (rule of the Gateway API Inference
Extension's llm-d router). `predicted-latency-producer` says what is expected.

```yaml
- type: slo-headroom-tier-filter
  parameters:
    epsilonExploreNeg: 0.02
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xxhash

from epp.framework import Candidates, Mask, Request
from epp.framework.latency import headroom, is_limited

_SEED = 1
"""Apart from other filters that draw by the same id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SloHeadroomTier:
    consumes: ClassVar[frozenset[str]] = frozenset(
        {"engine-metrics", "inflight-load", "predicted-latency", "prefix-match", "tokens"}
    )
    epsilon_explore_neg: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 <= self.epsilon_explore_neg <= 1.0:
            raise ValueError("epsilonExploreNeg must lie between 0 and 1")

    def keep(self, request: Request, candidates: Candidates, /) -> Mask:
        everybody = np.ones(len(candidates), dtype=np.bool_)
        if len(candidates) < 2 or not is_limited(request):
            return everybody
        fits = headroom(request, candidates).fits
        if fits.all() or not fits.any():
            return everybody
        drawn = xxhash.xxh32_intdigest(request.id.encode(), _SEED) / 2**32
        return ~fits if drawn < self.epsilon_explore_neg else fits
