"""Split a prompt where that costs fewer seconds than computing it where it is answered.

Type: `cost-pd-decider`.

Goes by both endpoints' load. Computing at the destination costs the wait there, the tokens that it
does not hold, and a share of what running answers lose meanwhile; computing elsewhere costs the
wait and the tokens there, and the transfer. The prefill profile says who that would be: the
decision is about this pair. Where nothing is known of tokens or matches, nothing is split.
`epp.framework.cost` has the model.

Parameters:
- `marginSeconds` (0.02; not below 0): what a split must save at least. A handoff is two more round
  trips.
- `answerTokens`, `queuedTokens`, `usualTokens`, `batchGrowth`, `harm`, `coming`, `slowest`,
  `alike`, `fewTwins`, `twinShare`: as those of `cost-scorer`.

Formula: split where `prompt seconds here - prompt seconds there >= marginSeconds`.

```yaml
- type: cost-pd-decider
  parameters:
    marginSeconds: 0.05
```
"""

from dataclasses import dataclass, replace
from math import isfinite
from typing import ClassVar

from epp.framework import Candidates, Endpoint, Request
from epp.framework.cost import CostRules, cost


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPd(CostRules):
    consumes: ClassVar[frozenset[str]] = frozenset(
        {"engine-metrics", "inflight-load", "prefix-match", "tokens"}
    )
    without_effect: ClassVar = {
        "few_twins": "equal requests count where endpoints are rated",
        "twin_share": "equal requests count where endpoints are rated",
    }
    margin_seconds: float = 0.02

    def __post_init__(self) -> None:
        super(CostPd, self).__post_init__()  # slots make a new class: no short form
        if not (isfinite(self.margin_seconds) and self.margin_seconds >= 0.0):
            raise ValueError("marginSeconds must be finite and not below 0")

    def decide(self, request: Request, destination: Endpoint, /) -> str:
        """Against a split where not even an endpoint that computes in no time would be cheaper."""
        if not request.scored:
            return "load-only"
        if not request.exact:
            return "tokens-estimated"
        if destination.match.missing(request.prompt_tokens) == 0.0:
            return "cached"
        both = Candidates.of([destination])
        here = cost(request, both, self).prompt[0]
        least = cost(replace(request, peer=destination), both, self).transfer[0]
        return "split" if here - least >= self.margin_seconds else "cheaper-here"

    def compare(self, request: Request, destination: Endpoint, prefill: Endpoint, /) -> str:
        """For this pair."""
        both = Candidates.of([destination, prefill])
        here = cost(replace(request, peer=None), both, self).prompt[0]
        there = cost(replace(request, peer=destination), both, self).prompt[1]
        return "split" if here - there >= self.margin_seconds else "cheaper-here"
