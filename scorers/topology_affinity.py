"""Prefer endpoints near the one that they would work for.

Type: `topology-affinity-scorer`. Alpha.

For the prefill profile: KV moves faster the nearer the two endpoints are. The tightest place that
a candidate shares with the destination counts, by the labels of both. A label that is missing is
shared with nobody. In a profile that chooses the destination itself all score 0.

Parameters:
- `hostname` (`kubernetes.io/hostname`), `rack` (`topology.kubernetes.io/rack`), `zone`
  (`topology.kubernetes.io/zone`), `region` (`topology.kubernetes.io/region`): the labels. The
  reference has these parameters at its `topology-extractor`.
- `topologyProducerName` (none): of the reference; labels are read here without an extractor.

Formula: 1 in the same host, 0.2 in the same rack, 0.05 in the same zone, 0.02 in the same region,
else 0 (rule of the Gateway API Inference Extension's llm-d router, after the bandwidth of each).

```yaml
- type: topology-affinity-scorer
  parameters:
    rack: example.com/rack
```
"""

from dataclasses import dataclass
from typing import ClassVar

from epp.framework import Candidates, Request
from epp.framework.topology import Level, Topology

SCORES = {Level.HOST: 1.0, Level.RACK: 0.2, Level.ZONE: 0.05, Level.REGION: 0.02, None: 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyAffinity(Topology):
    stability: ClassVar = "alpha"
    without_effect: ClassVar = {
        "topology_producer_name": "labels are read from the endpoints",
    }

    def score(self, request: Request, candidates: Candidates, /) -> list[float]:
        if request.peer is None:
            return [0.0] * len(candidates)
        shares = self.near(request.peer.labels)
        return [SCORES[shares(labels)] for labels in candidates.labels]
