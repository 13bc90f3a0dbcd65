"""Choose candidates at random, each with a chance in proportion to its rating.

Type: `weighted-random-picker`.

Spreads bursts of equal requests that `max-score-picker` would send to one endpoint. Candidates
rated 0 or less come only after all others, at random.

Parameters:
- `maxNumOfEndpoints` (1; at least 1): how many to choose.

Formula: each candidate draws `U` from (0, 1] and gets the key `U^(1/rating)`; the largest keys win
(A-Res of Efraimidis and Spirakis, 2006; rule of the Gateway API Inference Extension's llm-d
router). Logarithms of the keys are compared: small ratings would round them all to 0.

```yaml
- type: weighted-random-picker
  parameters:
    maxNumOfEndpoints: 2
```
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from epp.framework import Chance, sample


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRandom:
    max_num_of_endpoints: int = 1

    def __post_init__(self) -> None:
        if self.max_num_of_endpoints < 1:
            raise ValueError("maxNumOfEndpoints must be at least 1")

    def pick(self, totals: Sequence[float], chance: Chance, /) -> list[int]:
        rated = np.asarray(totals, dtype=np.float64)
        some = np.flatnonzero(rated > 0.0)
        drawn = np.fromiter((chance.random() for _ in range(len(some))), np.float64, len(some))
        with np.errstate(over="ignore"):
            keys = np.log1p(-drawn) / rated[some]
        chosen: list[int] = some[np.argsort(-keys)][: self.max_num_of_endpoints].tolist()
        rest: list[int] = np.flatnonzero(~(rated > 0.0)).tolist()
        return chosen + sample(rest, self.max_num_of_endpoints - len(chosen), chance)
