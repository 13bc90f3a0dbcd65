"""Prefer endpoints that hold the beginning of the prompt in their KV cache.

Type: `prefix-cache-scorer`.

An endpoint that holds nothing scores 0, so that a request nobody has seen is neutral and load
decides. Predicted matches count times the endpoint's trust; precise ones count in full.

Parameters:
- `matchLengthWeight` (0.0; 0 to 1): how much the length of the match counts beside its share.
- `matchLengthScaleTokens` (8192; above 0 where the length has weight): a match this long is as good
  as any longer one.
- `prefixMatchInfoProducerName` (none): which producer the match comes from. An endpoint has one
  match here, precise where its engine's events are followed, else predicted, so the name changes
  nothing; one that no entry has is refused.

Formula: `w * min(1, matched / scale)^2 + (1 - w) * matched / total`, where `total` are the tokens
of the prompt's full own blocks (rule of the Gateway API Inference Extension's llm-d router).

```yaml
- type: prefix-cache-scorer
  parameters:
    matchLengthWeight: 0.5
    matchLengthScaleTokens: 4096
```
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from epp.framework import Candidates, Column, Request, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    consumes: ClassVar = frozenset({"prefix-match"})
    without_effect: ClassVar = {
        "prefix_match_info_producer_name": "an endpoint has one match, the best that is known",
    }

    match_length_weight: float = 0.0
    match_length_scale_tokens: int = 8192
    prefix_match_info_producer_name: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.match_length_weight <= 1.0:
            raise ValueError("matchLengthWeight must lie between 0 and 1")
        if self.match_length_weight and not self.match_length_scale_tokens > 0:
            raise ValueError("matchLengthScaleTokens must be above 0")

    def score(self, request: Request, candidates: Candidates, /) -> Column:
        total = request.blocks * request.block_size
        if total <= 0:
            return np.zeros(len(candidates))
        matched = np.minimum(candidates.column("credited_tokens"), total)
        if not self.match_length_weight:
            return matched / total
        weight = self.match_length_weight
        length = np.minimum(matched / self.match_length_scale_tokens, 1.0)
        return weight * length * length + (1.0 - weight) * (matched / total)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisePrefixCache:
    """Prefer endpoints that hold the beginning of the prompt; the older name of two plugins.

    Type: `precise-prefix-cache-scorer`. Deprecated: use `prefix-cache-scorer`, by whose defaults it
    scores, and `precise-prefix-cache-producer`, which takes the same parameters.

    Parameters, which are read and change nothing: `tokenProcessorConfig`, `indexerConfig`,
    `kvEventsConfig`, `speculativeIndexing` and `speculativeTTL`. Sidecars follow their engines'
    events, and blocks are our own.
    """

    consumes: ClassVar = frozenset({"prefix-match"})
    without_effect: ClassVar = dict.fromkeys(
        (
            "token_processor_config",
            "indexer_config",
            "kv_events_config",
            "speculative_indexing",
            "speculative_ttl",
        ),
        "sidecars follow their engines' events, and blocks are our own",
    )
    spelled: ClassVar = {"speculative_ttl": "speculativeTTL"}

    token_processor_config: Mapping[str, Any] | None = None
    indexer_config: Mapping[str, Any] | None = None
    kv_events_config: Mapping[str, Any] | None = None
    speculative_indexing: bool = False
    speculative_ttl: Seconds = 2.0

    def score(self, request: Request, candidates: Candidates, /) -> Column:
        return _BY_DEFAULT.score(request, candidates)


_BY_DEFAULT = PrefixCache()
