"""Prefer the endpoint that answered the session's last request.

Type: `session-affinity-scorer`. Alpha.

That endpoint scores 1 and all others 0; without a session, or where its endpoint is no candidate,
all score 0. A preference only: other scorers can outweigh it, and `session-affinity-filter` makes
it a rule. With `encoded_endpoint_header` the answer carries a header that the client sends back;
with `session_id` the client names its session.

Parameters:
- `strategy` (`encoded_endpoint_header`; or `session_id`).
- `profileName` (none): keep sessions of the endpoint that this profile chose, such as `prefill`, in
  place of the destination's. An answer without a prefill elsewhere carries no such header.
- `encodedEndpointHeaderConfig.header` (`x-session-token`): request and answer header.
- `sessionIdConfig.sources` (header `x-session-id`): each with `header`, or `attribute:
  SessionIDDataKey` for what a `session-id-producer` reads; the first that is there counts.
- `sessionIdConfig.evictionTtlSeconds` (300; above 0): how long a session that sends nothing is
  remembered.
- `sessionIdConfig.evictionSweepSeconds` (10; above 0): without effect; what is over is forgotten at
  the next request.

Formula: 1 for the session's endpoint, else 0 (rule of the Gateway API Inference Extension's llm-d
router). Our tokens name the port as well; those without one fit every port of the pod.

```yaml
- type: session-affinity-scorer
  parameters:
    strategy: session_id
    sessionIdConfig:
      sources:
        - header: x-session-id
      evictionTtlSeconds: 600
```
"""

from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Column, Request
from epp.framework.sessions import SessionKeeper


class SessionAffinity(SessionKeeper):
    stability: ClassVar = "alpha"
    consumes: ClassVar = frozenset({"session-id"})

    def score(self, request: Request, candidates: Candidates, /) -> Column:
        scores = np.zeros(len(candidates))
        scores[self.rows(request, candidates)] = 1.0
        return scores
