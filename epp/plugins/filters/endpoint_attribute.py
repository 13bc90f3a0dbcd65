"""Keep endpoints of which one number compares with a threshold.

Type: `endpoint-attribute-filter`; alpha.

Parameters:
- `attribute` (required): `WaitingQueueSize`, `RunningRequestsSize`, `KVCacheUsagePercent`, or the
  name of any column of `epp.framework.COLUMNS`. Custom metrics of engines are not kept.
- `producer` (none): who says it; each attribute has one source here.
- `onMissing` (`Pass`; or `Fail`): whether an endpoint stays whose number is not known.
- `fallbackOnEmpty` (false): keep everybody where nobody would stay.
- `algorithm.type` (`threshold`): the only one. `algorithm.threshold` (required) has `operator`
  (`LessThan`, `LessThanOrEqual`, `GreaterThan`, `GreaterThanOrEqual`, `Equal`, `NotEqual`) and
  `value`.

```yaml
- type: endpoint-attribute-filter
  parameters:
    attribute: RunningRequestsSize
    algorithm:
      type: threshold
      threshold: {operator: LessThan, value: 10}
```
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from epp.framework import Candidates, Mask, Request, attribute, parameters

_COMPARE: dict[str, Callable[[Any, float], Any]] = {
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}


@parameters
class Threshold:
    operator: Literal[
        "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"
    ]
    value: float


@parameters
class Algorithm:
    type: Literal["threshold"]
    threshold: Threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointAttribute:
    stability: ClassVar[str] = "alpha"
    consumes: ClassVar[frozenset[str]] = frozenset({"engine-metrics"})
    without_effect: ClassVar[dict[str, str]] = {"producer": "each attribute has one source"}
    attribute: str
    algorithm: Algorithm
    producer: str = ""
    on_missing: Literal["Pass", "Fail"] = "Pass"
    fallback_on_empty: bool = False

    def __post_init__(self) -> None:
        attribute(self.attribute)

    def keep(self, _: Request, candidates: Candidates, /) -> Mask:
        values = candidates.column(attribute(self.attribute))
        threshold = self.algorithm.threshold
        kept: Mask = _COMPARE[threshold.operator](values, threshold.value)
        kept = np.where(np.isnan(values), self.on_missing == "Pass", kept)
        return ~kept if self.fallback_on_empty and not kept.any() else kept
