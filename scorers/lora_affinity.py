"""Prefer endpoints that run the wanted LoRA adapter, then those with room for it.

Type: `lora-affinity-scorer`.

Loading an adapter takes time, and an engine whose places are all taken makes its requests wait. So
an endpoint that runs the adapter scores 1, one with a free place 0.8, one where the adapter waits
for a place 0.6, any other 0. An endpoint that says nothing of adapters, as before its first one
(fault B03), scores as the worst of those that do, and 0.6 at most. A request for the base model
needs no place: all score 1 then, and likewise where no endpoint says anything.

Parameters: none.

Formula: the table above (rule of the Gateway API Inference Extension's llm-d router, which knows
neither base models nor silent endpoints: it scores both by the table).

```yaml
- type: lora-affinity-scorer
```
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Column, Lora, Request

RUNS, HAS_ROOM, WAITS, ELSE = 1.0, 0.8, 0.6, 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAffinity:
    consumes: ClassVar = frozenset({"engine-metrics"})

    def score(self, request: Request, candidates: Candidates, /) -> Sequence[float] | Column:
        model = request.target_model or request.model
        adapters = candidates.loras
        if not any(adapters) or all(lora is None or lora.base == model for lora in adapters):
            scores = np.empty(len(adapters))
            scores.fill(RUNS)
            return scores
        known = [None if lora is None else _one(model, lora) for lora in adapters]
        silent = min(WAITS, *(score for score in known if score is not None))
        return [silent if score is None else score for score in known]


def _one(model: str, lora: Lora) -> float:
    if model in lora.running:
        return RUNS
    if len(lora.running) + len(lora.waiting) < lora.most:
        return HAS_ROOM
    return WAITS if model in lora.waiting else ELSE
