"""Choose candidates at random, whatever their rating.

Type: `random-picker`.

Parameters:
- `maxNumOfEndpoints` (1; at least 1): how many to choose.

```yaml
- type: random-picker
```
"""

from collections.abc import Sequence
from dataclasses import dataclass

from epp.framework import Chance, sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    max_num_of_endpoints: int = 1

    def __post_init__(self) -> None:
        if self.max_num_of_endpoints < 1:
            raise ValueError("maxNumOfEndpoints must be at least 1")

    def pick(self, totals: Sequence[float], chance: Chance, /) -> list[int]:
        return sample(range(len(totals)), self.max_num_of_endpoints, chance)
