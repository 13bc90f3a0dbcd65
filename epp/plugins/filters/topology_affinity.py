"""Keep endpoints that are near the destination.

Type: `topology-affinity-filter`; alpha.

For the profile that chooses who computes a prompt: KV moves fastest within a host. It is a wish,
not a rule: everybody stays where the destination's place is not known, and where nobody is near
enough. A label that is missing or empty is shared with nobody.

Parameters:
- `minAffinity` (`host`; or `rack`, `zone`, `region`): the widest place to share.
- `hostname`, `rack`, `zone`, `region`: the labels that name an endpoint's places; defaults are
  those of Kubernetes.
- `topologyProducerName`: name of a producer; labels are read from the endpoints.

```yaml
- type: topology-affinity-filter
  parameters:
    minAffinity: zone
```
"""

from dataclasses import dataclass
from typing import ClassVar

from epp.framework import Candidates, Request
from epp.framework.topology import Level, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyAffinity(Topology):
    stability: ClassVar[str] = "alpha"
    without_effect: ClassVar[dict[str, str]] = {
        "topology_producer_name": "labels are read from the endpoints",
    }
    min_affinity: Level = Level.HOST

    def keep(self, request: Request, candidates: Candidates, /) -> list[bool]:
        if request.peer is None:
            return [True] * len(candidates)
        places = (self.hostname, self.rack, self.zone, self.region)
        kept = [False] * len(candidates)
        for label in places[: self.min_affinity.looseness + 1]:
            here = request.peer.labels.get(label)
            if here:
                kept = [
                    near or labels.get(label) == here
                    for near, labels in zip(kept, candidates.labels, strict=True)
                ]
        return kept if any(kept) else [True] * len(kept)
