"""Keep endpoints that may work with the destination: equal labels on both sides.

Type: `pair-label-filter`; our own.

For the profile that chooses who computes a prompt. Two engines can hand KV over only where version,
model and layout are the same, so nobody stands in for a partner: where none is left, the
destination computes the prompt itself. A label that both lack is equal. Before a destination is
chosen everybody stays.

Parameters:
- `labels` (required): names of labels, such as the revision of a rollout; all must be equal.

```yaml
- type: pair-label-filter
  parameters:
    labels: [disaggregatedset.x-k8s.io/revision]
```
"""

from dataclasses import dataclass

from epp.framework import Candidates, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLabel:
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.labels or not all(self.labels):
            raise ValueError("labels must name one at least, and none may be empty")

    def keep(self, request: Request, candidates: Candidates, /) -> list[bool]:
        if request.peer is None:
            return [True] * len(candidates)
        wanted = tuple(map(request.peer.labels.get, self.labels))
        return [tuple(map(labels.get, self.labels)) == wanted for labels in candidates.labels]
