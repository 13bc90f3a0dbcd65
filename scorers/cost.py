"""Prefer endpoints where the request costs the fewest seconds, its own and those of others.

Type: `cost-scorer`.

Counts the prompt tokens that are computed before this request's and those of its own that the
endpoint does not hold, at the endpoint's prefill speed; what the answer loses beside the answers
that are written there; the wait for KV blocks where there are too few; the transfer where the
endpoint computes the prompt for another one; and a share of what all of that costs others. One
scale for cache and load: a cached prefix is worth the seconds that it saves, no more, so that a
long one is worth a longer queue than a short one. `epp.framework.cost` has the model.

Parameters:
- `scaleSeconds` (1.0; above 0): the cost that scores one half.
- `answerTokens` (128; at least 1): answers are expected to be this long where more is allowed.
- `queuedTokens` (1024; at least 1): prompt tokens to compute for a waiting request of others.
- `usualTokens` (3072; at least 1): answers beside this one are taken to hold as many tokens as it
  does, at most this many, unless the engine reports more.
- `batchGrowth` (0.01; 0 to 1): share of a step that each answer in the batch adds to it.
- `harm` (0.1; not below 0): what a second of each answer beside this one counts beside one of its
  own.
- `coming` (0.5; not below 0): what a second of computing counts more than one of waiting, for those
  who come next and wait for it.
- `slowest` (8; at least 1): how many times slower than the fastest candidate an endpoint with
  nothing to do may look.
- `alike` (1.5; at least 1): measured speeds count as the middle one of all candidates as far as
  they differ from it by no more than this factor.
- `twinShare` (1.2; at least 1): an endpoint that was given more than this many times its even share
  of equal requests within the last seconds has nothing of holding their prompt.
- `fewTwins` (8; at least 1): as long as it was given no more of them than this, it has.

Formula: `1 / (1 + seconds / scaleSeconds)`. What is not known of an engine counts as at the busiest
candidate.

```yaml
- type: cost-scorer
  parameters:
    harm: 0.5
```
"""

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from epp.framework import Candidates, Column, Request
from epp.framework.cost import CostRules, cost


@dataclass(frozen=True, slots=True, kw_only=True)
class CostScorer(CostRules):
    consumes: ClassVar = frozenset({"engine-metrics", "inflight-load", "prefix-match", "tokens"})
    scale_seconds: float = 1.0

    def __post_init__(self) -> None:
        super(CostScorer, self).__post_init__()  # slots make a new class: no short form
        if not (isfinite(self.scale_seconds) and self.scale_seconds > 0.0):
            raise ValueError("scaleSeconds must be finite and above 0")

    def score(self, request: Request, candidates: Candidates, /) -> Column:
        seconds = cost(request, candidates, self).total
        return self.scale_seconds / (self.scale_seconds + seconds)
