"""Keep the endpoint that the client's session belongs to, if it is there.

Type: `session-affinity-filter`; alpha.

Everybody stays where a request has no session, and where its endpoint is no candidate: a session is
a hint (fault B18). How sessions are told apart, and all parameters: `epp.framework.sessions`.
`session-affinity-scorer` prefers the endpoint in place of insisting on it; one of the two is
enough.

```yaml
- type: session-affinity-filter
  parameters:
    strategy: session_id
    sessionIdConfig:
      sources:
        - header: x-session-id
```
"""

import numpy as np

from epp.framework import Candidates, Mask, Request
from epp.framework.sessions import SessionKeeper


class SessionAffinity(SessionKeeper):
    stability = "alpha"
    consumes = frozenset({"session-id"})

    def keep(self, request: Request, candidates: Candidates, /) -> Mask:
        found = self.rows(request, candidates)
        kept = np.zeros(len(candidates), dtype=np.bool_)
        kept[found] = True
        return kept if found else ~kept
