"""Times that a request is expected to take at each endpoint.

Type: `predicted-latency-producer`.

Always there, and nothing is trained. The time until the answer begins is the prompt tokens that are
computed before this request's and those of its own that the endpoint does not hold, at the prefill
speed observed there, the KV that has to come over where another endpoint answers, and the wait for
KV blocks where there are too few. The time from one token to the next is a step of that engine as
slow as the answers beside this one make it. `epp.framework.cost` has the model. Nothing is expected
of an endpoint whose engine says nothing, nor for a request that nobody could read.

Parameters:
- `sloBufferFactor` (1; above 0): the limit between two tokens (`x-llm-d-slo-tpot-ms`) counts times
  this; below 1 leaves a reserve.
- `predictInProduce` (true): false is refused. Leave the plugins that read predictions out instead.

Read and without effect, for want of a model to train: `samplingMean` (1000),
`maxDecodeTokenSamplesForPrediction` (0), `contextTTL` (5m), `streamingMode` (false),
`endpointRoleLabel` (none) and `useEncoderCacheFeatures` (false).

```yaml
- type: predicted-latency-producer
  parameters:
    sloBufferFactor: 0.9
```
"""

from dataclasses import dataclass
from typing import ClassVar

from epp.framework import Seconds

_UNTRAINED = "speeds are observed from every request; no model is trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLatency:
    consumes: ClassVar[frozenset[str]] = frozenset(
        {"engine-metrics", "inflight-load", "prefix-match", "tokens"}
    )
    produces: ClassVar[frozenset[str]] = frozenset({"predicted-latency"})
    without_effect: ClassVar[dict[str, str]] = {
        "sampling_mean": _UNTRAINED,
        "max_decode_token_samples_for_prediction": _UNTRAINED,
        "context_ttl": "nothing is kept of a request beyond its end",
        "streaming_mode": "the first token is meant, whether or not the answer streams",
        "endpoint_role_label": "each endpoint has speeds of its own, whatever its role",
        "use_encoder_cache_features": _UNTRAINED,
    }
    spelled: ClassVar[dict[str, str]] = {"context_ttl": "contextTTL"}
    sampling_mean: float = 1000.0
    max_decode_token_samples_for_prediction: int = 0
    slo_buffer_factor: float = 1.0
    context_ttl: Seconds = 300.0
    streaming_mode: bool = False
    endpoint_role_label: str = ""
    predict_in_produce: bool = True
    use_encoder_cache_features: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.slo_buffer_factor < float("inf"):
            raise ValueError("sloBufferFactor must be a finite number above 0")
        if not 0.0 < self.sampling_mean < float("inf"):
            raise ValueError("samplingMean must be a finite number above 0")
        if self.max_decode_token_samples_for_prediction < 0:
            raise ValueError("maxDecodeTokenSamplesForPrediction must be at least 0")
        if not 0.0 < self.context_ttl < float("inf"):
            raise ValueError("contextTTL must be a finite time above 0")
        if not self.predict_in_produce:
            raise ValueError("predictInProduce must be true: leave out the plugins that read it")
