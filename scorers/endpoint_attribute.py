"""Prefer endpoints by one number of theirs.

Type: `endpoint-attribute-scorer`. Alpha.

An endpoint whose number is not known scores 0 and leaves the range alone.

Parameters:
- `attributeKey` (required): `WaitingQueueSize`, `RunningRequestsSize` or `KVCacheUsagePercent` (a
  share, 0 to 1), or any column of `epp.framework.COLUMNS`, such as `reserved_requests`. Custom
  metrics of engines are not kept; their names are refused.
- `producer` (none): which producer the number comes from; changes nothing.
- `algorithm.type` (required; `linear_lower_is_better` or `linear_higher_is_better`).
- `algorithm.normalization` (`adaptiveRange: {}`, the range of the candidates; or `fixedRange: {min,
  max}`, outside of which a number counts as its end).

Formula: `(value - min) / (max - min)`, or 1 less that where lower is better; where all candidates
have the same number, 1 by the adaptive range (rule of the Gateway API Inference Extension's llm-d
router).

```yaml
- type: endpoint-attribute-scorer
  parameters:
    attributeKey: KVCacheUsagePercent
    algorithm:
      type: linear_lower_is_better
      normalization:
        fixedRange: {min: 0.0, max: 0.9}
```
"""

from typing import ClassVar, Literal

import numpy as np

from epp.framework import Candidates, Column, Request, attribute, parameters


@parameters
class FixedRange:
    """Finite bounds."""

    min: float
    max: float

    def __post_init__(self) -> None:
        if not -float("inf") < self.min < self.max < float("inf"):
            raise ValueError("min must be below max, both finite")


@parameters
class AdaptiveRange:
    """The candidates' own; nothing to set."""


@parameters
class Normalization:
    """One of both; the adaptive range where none is named."""

    fixed_range: FixedRange | None = None
    adaptive_range: AdaptiveRange | None = None

    def __post_init__(self) -> None:
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("either fixedRange or adaptiveRange, not both")


@parameters
class Algorithm:
    """See the module."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    normalization: Normalization = Normalization()


class EndpointAttribute:
    stability: ClassVar = "alpha"
    consumes: ClassVar = frozenset({"engine-metrics", "inflight-load"})
    without_effect: ClassVar = {"producer": "each attribute has one source"}

    def __init__(
        self, *, attribute_key: str, algorithm: Algorithm, producer: str | None = None
    ) -> None:
        self._column = attribute(attribute_key)
        self._lower = algorithm.type == "linear_lower_is_better"
        self._fixed = algorithm.normalization.fixed_range

    def score(self, _: Request, candidates: Candidates, /) -> Column:
        values = candidates.column(self._column)
        if not len(values):
            return values
        if self._fixed is None:
            least, most = float(np.fmin.reduce(values)), float(np.fmax.reduce(values))
            if least == most:
                return np.where(np.isnan(values), 0.0, 1.0)
        else:
            least, most = self._fixed.min, self._fixed.max
        share = (values - least) / (most - least)
        if self._lower:
            share = 1.0 - share
        return np.fmin(np.fmax(share, 0.0), 1.0)
