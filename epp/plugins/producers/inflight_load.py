"""Load of the requests under way, charged when a request is routed until it ends.

Type: `inflight-load-producer`.

Always there. Prompts are charged as tokens, less what is cached, until the first token comes;
answers are charged as KV blocks by the request's own limit until they end. Both belong to one life
of an engine, and can neither leak nor go below zero.

Parameters, which are read and change nothing:
- `addEstimatedOutputTokens` (false), `outputRatio` (1.5), `maxEstimatedOutputTokens` (none):
  answers are charged by their limit, apart from prompts.
- `syncCrossReplicaState` (true): replicas share engines' reports; each knows its own requests.
- `prefixMatchInfoProducerName`: matches have one source here.

```yaml
- type: inflight-load-producer
```
"""

from dataclasses import dataclass
from typing import ClassVar

_ANSWERS = "answers are charged as KV blocks by the request's own limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class InflightLoad:
    produces: ClassVar[frozenset[str]] = frozenset({"inflight-load"})
    without_effect: ClassVar[dict[str, str]] = {
        "add_estimated_output_tokens": _ANSWERS,
        "output_ratio": _ANSWERS,
        "max_estimated_output_tokens": _ANSWERS,
        "sync_cross_replica_state": "replicas share engines' reports; each knows its own requests",
        "prefix_match_info_producer_name": "matches have one source",
    }
    add_estimated_output_tokens: bool = False
    output_ratio: float = 1.5
    max_estimated_output_tokens: int | None = None
    sync_cross_replica_state: bool = True
    prefix_match_info_producer_name: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.output_ratio < float("inf"):
            raise ValueError("outputRatio must be a finite number of at least 0")
        if self.max_estimated_output_tokens is not None and self.max_estimated_output_tokens < 0:
            raise ValueError("maxEstimatedOutputTokens must be at least 0")
