"""Prefer endpoints with fewer prompt tokens left to compute, this request's included.

Type: `token-load-scorer`.

Counts the uncached prompt tokens of requests that we sent there and whose first token we have not
seen, plus the tokens of this request that the endpoint does not hold. So one prompt of 100,000
tokens weighs more than ten short ones, and a cached prefix lowers the price of an endpoint.

Parameters:
- `queueThresholdTokens` (4194304; above 0): tokens at which the score reaches 0.
- `inFlightLoadProducerName` (none): which `inflight-load-producer` counts. There is one here; a
  name that no entry has is refused.

Formula: `1 - min(1, (reserved prefill tokens + uncached tokens) / queueThresholdTokens)` (rule of
the Gateway API Inference Extension's llm-d router).

```yaml
- type: token-load-scorer
  parameters:
    queueThresholdTokens: 65536
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Column, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoad:
    consumes: ClassVar = frozenset({"inflight-load"})
    without_effect: ClassVar = {
        "in_flight_load_producer_name": "there is one count of what is under way",
    }

    queue_threshold_tokens: int = 4_194_304
    in_flight_load_producer_name: str = ""

    def __post_init__(self) -> None:
        if not self.queue_threshold_tokens > 0:
            raise ValueError("queueThresholdTokens must be above 0")

    def score(self, request: Request, candidates: Candidates, /) -> Column:
        uncached = np.fmax(request.prompt_tokens - candidates.column("credited_tokens"), 0.0)
        tokens = candidates.column("reserved_prefill_tokens") + uncached
        return np.fmax(1.0 - tokens / self.queue_threshold_tokens, 0.0)
