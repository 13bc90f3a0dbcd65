"""Choose the best-rated candidates, equals at random.

Type: `max-score-picker`.

Which of several equals comes first has nothing to do with their order: a counter that rotates over
changing lists starves some of them (fault B17).

Parameters:
- `maxNumOfEndpoints` (1; at least 1): how many to choose; the gateway goes down the list when one
  does not answer.

```yaml
- type: max-score-picker
  parameters:
    maxNumOfEndpoints: 2
```
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epp.framework import Chance, sample

TIE = 1e-9
"""Ratings closer than this are equal: sums of floats differ in their last bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxScore:
    max_num_of_endpoints: int = 1

    def __post_init__(self) -> None:
        if self.max_num_of_endpoints < 1:
            raise ValueError("maxNumOfEndpoints must be at least 1")

    def pick(self, totals: Sequence[float], chance: Chance, /) -> list[int]:
        left = np.asarray(totals, dtype=np.float64)
        wanted = min(self.max_num_of_endpoints, len(left))
        chosen: list[int] = []
        while True:
            best = left.item(left.argmax())
            equals = (left >= best - TIE).nonzero()[0]
            chosen += sample(equals.tolist(), wanted - len(chosen), chance)
            if len(chosen) == wanted:
                return chosen
            left = left.copy()
            left[equals] = -np.inf
