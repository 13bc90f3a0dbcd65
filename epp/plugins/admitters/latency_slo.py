"""Refuse what may be shed where nobody is expected to meet the times that it asks for.

Type: `latency-slo-admitter`.

A request with a priority below 0 that names a limit is refused where no endpoint is expected to
meet it, none is idle, and none is so empty that nothing can be said of it. All others are served,
and so is a request of which nothing can be expected.

Parameters:
- `latencyPredictionInfoProducerName`: without effect; times are expected in one way.

Formula: refused when `limit - expected < 0` of some limit at every endpoint, every endpoint has
running requests and every KV cache is used by 2 % at least (rule of the Gateway API Inference
Extension's llm-d router). `predicted-latency-producer` says what is expected.

```yaml
- type: latency-slo-admitter
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Chance, Request
from epp.framework.latency import headroom, is_limited

_COLD = 0.02
"""Use of the KV cache below which expectations mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySlo:
    consumes: ClassVar[frozenset[str]] = frozenset(
        {"engine-metrics", "inflight-load", "predicted-latency", "prefix-match", "tokens"}
    )
    without_effect: ClassVar[dict[str, str]] = {
        "latency_prediction_info_producer_name": "times are expected in one way",
    }
    latency_prediction_info_producer_name: str = ""

    def admits(self, request: Request, candidates: Candidates, _: Chance, /) -> bool:
        if request.priority >= 0 or not is_limited(request):
            return True
        left = headroom(request, candidates)
        if not left.known.any() or left.fits.any():
            return True
        idle = candidates.column("running") == 0
        cold = candidates.column("kv_usage") < _COLD
        return bool(np.count_nonzero(idle | cold))
