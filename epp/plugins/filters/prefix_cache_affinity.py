"""Keep endpoints that hold most of the prompt, unless they are much busier than the others.

Type: `prefix-cache-affinity-filter`.

An endpoint is warm when its share of the prompt reaches a threshold. Where one is, only the warm
ones stay, and load decides among them. All stay where nobody is warm, and where even the least busy
warm one has so much to compute that a cold one would answer sooner by more than the allowed delay.

Parameters:
- `affinityThreshold` (0.8; at most 1): share of the prompt's full own blocks; 0 keeps everybody.
- `explorationProbability` (0; 0 to 1): share of requests for which everybody stays, so that other
  endpoints become warm as well. The request's id draws, so that a decision can be repeated.
- `maxTTFTPenaltyMs` (18000; at least 0): the allowed delay; 0 sticks to the warm ones whatever it
  costs.
- `ttftSource` (`prefillThroughput`): what the delay is told by. `prefillThroughput`: prompt tokens
  that are to be computed there, at one speed for all. `latencyPredictor`: the time until the answer
  begins that `predicted-latency-producer` expects, with this prompt's own tokens and each
  endpoint's observed speed in it. Where nothing is expected of any warm endpoint, or of any other,
  everybody stays.
- `peakPrefillThroughput` (15928; above 0): tokens per second of `prefillThroughput`. The default
  was measured by the reference with Qwen 32B on two H100.
- `prefixMatchInfoProducerName`, `inFlightLoadProducerName`, `latencyPredictionInfoProducerName`:
  names of producers; matches, load and predictions have one source here.

Formula: warm when `matched / total >= affinityThreshold`; the delay is the least time of the warm
endpoints less that of the others, where the time is expected, or is
`reserved prefill tokens / peakPrefillThroughput` (rule of the Gateway API Inference Extension's
llm-d router).

```yaml
- type: prefix-cache-affinity-filter
  parameters:
    affinityThreshold: 0.8
    maxTTFTPenaltyMs: 5000
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xxhash

from epp.framework import Candidates, Column, Mask, Request
from epp.framework.latency import first_token_s

_SOURCES = ("prefillThroughput", "latencyPredictor")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheAffinity:
    consumes: ClassVar[frozenset[str]] = frozenset(
        {"inflight-load", "predicted-latency", "prefix-match"}
    )
    without_effect: ClassVar[dict[str, str]] = {
        "prefix_match_info_producer_name": "an endpoint has one match, the best that is known",
        "in_flight_load_producer_name": "there is one count of what is under way",
        "latency_prediction_info_producer_name": "predictions have one source",
    }
    spelled: ClassVar[dict[str, str]] = {"max_ttft_penalty_ms": "maxTTFTPenaltyMs"}
    affinity_threshold: float = 0.8
    exploration_probability: float = 0.0
    max_ttft_penalty_ms: float = 18_000.0
    ttft_source: str = "prefillThroughput"
    peak_prefill_throughput: float = 15_928.0
    prefix_match_info_producer_name: str = ""
    in_flight_load_producer_name: str = ""
    latency_prediction_info_producer_name: str = ""

    def __post_init__(self) -> None:
        if not self.affinity_threshold <= 1.0:
            raise ValueError("affinityThreshold must be at most 1")
        if not 0.0 <= self.exploration_probability <= 1.0:
            raise ValueError("explorationProbability must lie between 0 and 1")
        if not 0.0 <= self.max_ttft_penalty_ms < float("inf"):
            raise ValueError("maxTTFTPenaltyMs must be a finite number of at least 0")
        if not 0.0 < self.peak_prefill_throughput < float("inf"):
            raise ValueError("peakPrefillThroughput must be a finite number above 0")
        if self.ttft_source not in _SOURCES:
            raise ValueError(f"ttftSource must be one of {', '.join(_SOURCES)}")

    def keep(self, request: Request, candidates: Candidates, /) -> Mask:
        everybody = np.ones(len(candidates), dtype=np.bool_)
        if self._explores(request):
            return everybody
        total = request.blocks * request.block_size
        warm: Mask = candidates.column("credited_tokens") >= self.affinity_threshold * total
        if not warm.any() or warm.all():
            return everybody
        return everybody if self._delays(request, candidates, warm) else warm

    def _explores(self, request: Request) -> bool:
        drawn = xxhash.xxh32_intdigest(request.id.encode()) / 2**32
        return drawn < self.exploration_probability

    def _delays(self, request: Request, candidates: Candidates, warm: Mask) -> bool:
        """Whether the soonest of the warm endpoints is too far behind the soonest other, or nobody
        can say."""
        if self.max_ttft_penalty_ms == 0.0:
            return False
        seconds = self._seconds(request, candidates)
        soonest, other = np.fmin.reduce(seconds[warm]), np.fmin.reduce(seconds[~warm])
        return not (soonest - other) * 1000.0 <= self.max_ttft_penalty_ms

    def _seconds(self, request: Request, candidates: Candidates) -> Column:
        """Until an answer begins there; NaN where nobody knows."""
        if self.ttft_source == "latencyPredictor":
            return first_token_s(request, candidates)
        pending = np.maximum(candidates.column("reserved_prefill_tokens"), 0.0)
        seconds: Column = pending / self.peak_prefill_throughput
        return seconds
