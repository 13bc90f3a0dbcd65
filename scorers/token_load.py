"""Prefer endpoints with fewer prompt tokens left to compute, this request's included.

Type: `token-load-scorer`.

Counts the uncached prompt tokens of requests that we sent there and whose first token we have not
seen, plus the tokens of this request that the endpoint does not hold. So one prompt of 100,000
tokens weighs more than ten short ones, and a cached prefix lowers the price of an endpoint.

Parameters:
- `queueThresholdTokens` (4194304; above 0): tokens at which the score reaches 0.

Formula: `1 - min(1, (reserved prefill tokens + uncached tokens) / queueThresholdTokens)` (rule of
the Gateway API Inference Extension's llm-d router).

```yaml
- type: token-load-scorer
  parameters:
    queueThresholdTokens: 65536
```
"""

from collections.abc import Sequence
from dataclasses import dataclass

from epp.framework import Endpoint, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoad:
    queue_threshold_tokens: int = 4_194_304

    def __post_init__(self) -> None:
        if not self.queue_threshold_tokens > 0:
            raise ValueError("queueThresholdTokens must be above 0")

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> list[float]:
        return [self._one(request, endpoint) for endpoint in endpoints]

    def _one(self, request: Request, endpoint: Endpoint) -> float:
        uncached = endpoint.match.missing(request.prompt_tokens)
        tokens = max(endpoint.load.reserved_prefill_tokens, 0) + uncached
        return 1.0 - min(1.0, tokens / self.queue_threshold_tokens)
