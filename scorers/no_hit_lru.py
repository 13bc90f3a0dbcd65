"""Spread prompts that nobody holds: prefer who got such a prompt longest ago.

Type: `no-hit-lru-scorer`.

A prompt that nobody holds makes new cache entries wherever it goes, so the endpoints take turns. A
prompt that somebody holds is left to other scorers: all score 0.5 then. Endpoints that never got
one score 1. Of a split request both endpoints have had their turn.

Parameters:
- `lruSize` (1024; at least 1): endpoints whose last turn is remembered.
- `prefixPluginType` and `prefixPluginName` (`prefix-cache-scorer`): of older configurations, and
  without effect, as in the reference.
- `prefixMatchInfoProducerName` (none): which producer the match comes from. An endpoint has one
  match here, so the name changes nothing; one that no entry has is refused.

Formula: `1 - rank / (candidates - 1)` for who had a turn, ranked from the longest ago and behind
all who had none; a single candidate scores 1 (rule of the Gateway API Inference Extension's llm-d
router, which ranks those without a turn by their order in the list too, and those with one among
all endpoints instead of the candidates).

```yaml
- type: no-hit-lru-scorer
  parameters:
    lruSize: 256
```
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Column, Decision, EndpointId, Request

NEUTRAL = 0.5
MAX_REQUESTS = 10_000
"""Requests under way that are remembered to be held by nobody."""


class NoHitLru:
    consumes: ClassVar = frozenset({"prefix-match"})
    without_effect: ClassVar = {
        "prefix_plugin_type": "matches come with the candidates",
        "prefix_plugin_name": "matches come with the candidates",
        "prefix_match_info_producer_name": "an endpoint has one match, the best that is known",
    }

    def __init__(
        self,
        *,
        lru_size: int = 1024,
        prefix_plugin_type: str = "prefix-cache-scorer",
        prefix_plugin_name: str = "prefix-cache-scorer",
        prefix_match_info_producer_name: str = "",
    ) -> None:
        if lru_size < 1:
            raise ValueError("lruSize must be at least 1")
        self._size = lru_size
        self._turns = 0
        self._last: OrderedDict[EndpointId, int] = OrderedDict()
        """Number of the last turn of each endpoint, the longest ago first."""
        self._cold: OrderedDict[str, None] = OrderedDict()
        """Requests that nobody held a block of."""

    def score(self, request: Request, candidates: Candidates, /) -> Column:
        if candidates.column("matched_tokens").any():
            self._cold.pop(request.id, None)
            return np.full(len(candidates), NEUTRAL)
        self._cold[request.id] = None
        if len(self._cold) > MAX_REQUESTS:
            self._cold.popitem(last=False)
        last = self._last.get
        turns = np.array([last(ident, 0) for ident in candidates.ids], np.float64)
        ranks = np.empty(len(turns))
        ranks[np.argsort(turns)] = np.arange(len(turns))
        return np.where(turns > 0.0, 1.0 - ranks / max(len(turns) - 1, 1), 1.0)

    def chosen(self, request: Request, decision: Decision, /) -> None:
        if request.id not in self._cold:
            return
        del self._cold[request.id]
        self._turns += 1
        for endpoint in (*decision.chosen[:1], *decision.prefill[:1]):
            self._last[endpoint.id] = self._turns
            self._last.move_to_end(endpoint.id)
        while len(self._last) > self._size:
            self._last.popitem(last=False)

    def removed(self, endpoints: Collection[EndpointId], /) -> None:
        for ident in endpoints:
            self._last.pop(ident, None)
