"""Prefer endpoints that hold the beginning of the prompt in their KV cache.

Type: `prefix-cache-scorer`.

An endpoint that holds nothing scores 0, so that a request nobody has seen is neutral and load
decides. Predicted matches count times the endpoint's trust; precise ones count in full.

Parameters:
- `matchLengthWeight` (0.0; 0 to 1): how much the length of the match counts beside its share.
- `matchLengthScaleTokens` (8192; above 0): a match this long is as good as any longer one.

Formula: `w * min(1, matched / scale)^2 + (1 - w) * matched / total`, where `total` are the tokens
of the prompt's full own blocks (rule of the Gateway API Inference Extension's llm-d router).

```yaml
- type: prefix-cache-scorer
  parameters:
    matchLengthWeight: 0.5
    matchLengthScaleTokens: 4096
```
"""

from collections.abc import Sequence
from dataclasses import dataclass

from epp.framework import Endpoint, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    match_length_weight: float = 0.0
    match_length_scale_tokens: int = 8192

    def __post_init__(self) -> None:
        if not 0.0 <= self.match_length_weight <= 1.0:
            raise ValueError("matchLengthWeight must lie between 0 and 1")
        if not self.match_length_scale_tokens > 0:
            raise ValueError("matchLengthScaleTokens must be above 0")

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> list[float]:
        total = request.blocks * request.block_size
        if total <= 0:
            return [0.0] * len(endpoints)
        return [self._one(endpoint.match.credited_tokens, total) for endpoint in endpoints]

    def _one(self, credited: float, total: int) -> float:
        matched = min(max(0.0, credited), float(total))
        weight = self.match_length_weight
        length = min(1.0, matched / self.match_length_scale_tokens)
        return weight * length * length + (1.0 - weight) * matched / total
