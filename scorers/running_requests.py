"""Prefer endpoints that answer fewer requests at the same time.

Type: `running-requests-size-scorer`.

What runs at an endpoint is the larger of what its engine reports and what we sent there whose
answer has begun. An engine whose count is not known scores 0 beside one whose count is; where no
engine's is known, our own count decides alone.

Parameters: none.

Formula: `(max - running) / (max - min)`; all equal gives 1 (rule of the Gateway API Inference
Extension, which knows the reported count only): 10/5/0 gives 0/0.5/1.

```yaml
- type: running-requests-size-scorer
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Column, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRequests:
    consumes: ClassVar = frozenset({"engine-metrics", "inflight-load"})

    def score(self, _: Request, candidates: Candidates, /) -> Column:
        running = candidates.answering()
        if not len(running):
            return running
        least = float(np.fmin.reduce(running))
        span = max(float(np.fmax.reduce(running)) - least, 1.0)
        return np.fmax(1.0 - (running - least) / span, 0.0)
