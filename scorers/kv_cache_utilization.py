"""Prefer endpoints whose KV cache is less used by running requests.

Type: `kv-cache-utilization-scorer`. No parameters.

Cached blocks that nobody uses do not count as used: a warm, idle engine scores 1. An engine whose
use is not known scores 0.

Formula: `1 - usage` (rule of the Gateway API Inference Extension).

```yaml
- type: kv-cache-utilization-scorer
```
"""

from collections.abc import Sequence
from dataclasses import dataclass

from epp.framework import Endpoint, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheUtilization:
    def score(self, _: Request, endpoints: Sequence[Endpoint], /) -> list[float]:
        return [_free(endpoint.load.kv_usage) for endpoint in endpoints]


def _free(usage: float | None) -> float:
    if usage is None or not 0.0 <= usage <= 1.0:
        return 0.0
    return 1.0 - usage
