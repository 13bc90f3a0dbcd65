"""Prefer endpoints with more room for the answers that are being written.

Type: `decode-load-scorer`. No parameters.

Counts the KV blocks of running requests as the engine reports them, plus the blocks that we
reserved for requests no report shows yet: a burst is felt at once, before the next report. An
engine that never said how many blocks it has scores 0.

Formula: `1 - min(1, (active blocks + reserved decode blocks) / blocks of the engine)`; where the
engine's blocks are known but the active ones are not, the score is 0 as well.

```yaml
- type: decode-load-scorer
```
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from epp.framework import Endpoint, Load, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLoad:
    def score(self, _: Request, endpoints: Sequence[Endpoint], /) -> list[float]:
        return [_room(endpoint.load) for endpoint in endpoints]


def _room(load: Load) -> float:
    active = load.active_blocks
    if active is None or not isfinite(active) or active < 0.0:
        return 0.0
    if load.total_blocks is None or load.total_blocks <= 0:
        return 0.0
    used = active + max(load.reserved_decode_blocks, 0)
    return 1.0 - min(1.0, used / load.total_blocks)
