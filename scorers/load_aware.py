"""Prefer endpoints with short queues, on a scale that does not depend on the other candidates.

Type: `load-aware-scorer`.

An empty queue scores 0.5, the most that this scorer gives: nobody can tell from a queue how much
more an idle engine would take. The queue of an endpoint is the larger of what its engine reports
and what we sent there and has not answered yet. An engine whose queue is not known scores 0 beside
one whose queue is; where no engine's is known, our own count decides alone.

Parameters:
- `threshold` (128; at least 1): requests at which the score reaches 0.

Formula: `0.5 * (1 - min(1, queue / threshold))` (rule of the Gateway API Inference Extension's
llm-d router): with 128, a queue of 64 gives 0.25.

```yaml
- type: load-aware-scorer
  parameters:
    threshold: 64
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Column, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAware:
    consumes: ClassVar = frozenset({"engine-metrics", "inflight-load"})

    threshold: int = 128

    def __post_init__(self) -> None:
        if self.threshold < 1:
            raise ValueError("threshold must be at least 1")

    def score(self, _: Request, candidates: Candidates, /) -> Column:
        return np.fmax(0.5 - candidates.queues() * (0.5 / self.threshold), 0.0)
