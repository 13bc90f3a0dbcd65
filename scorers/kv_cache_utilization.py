"""Prefer endpoints whose KV cache is less used by running requests.

Type: `kv-cache-utilization-scorer`.

Cached blocks that nobody uses do not count as used: a warm, idle engine scores 1. An engine whose
use is not known scores 0.

Parameters: none.

Formula: `1 - usage` (rule of the Gateway API Inference Extension).

```yaml
- type: kv-cache-utilization-scorer
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Column, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheUtilization:
    consumes: ClassVar = frozenset({"engine-metrics"})

    def score(self, _: Request, candidates: Candidates, /) -> Column:
        usage = candidates.column("kv_usage")
        return np.where((usage >= 0.0) & (usage <= 1.0), 1.0 - usage, 0.0)
