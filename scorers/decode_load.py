"""Prefer endpoints with more room for the answers that are being written.

Type: `decode-load-scorer`.

Counts the KV blocks of running requests as the engine reports them, plus the blocks that we
reserved for requests no report shows yet: a burst is felt at once, before the next report. An
engine that never said how many blocks it has scores 0.

Parameters: none.

Formula: `1 - min(1, (active blocks + reserved decode blocks) / blocks of the engine)`; where the
engine's blocks are known but the active ones are not, the score is 0 as well.

```yaml
- type: decode-load-scorer
```
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epp.framework import Candidates, Column, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLoad:
    consumes: ClassVar = frozenset({"engine-metrics", "inflight-load"})

    def score(self, _: Request, candidates: Candidates, /) -> Column:
        active, total = candidates.column("active_blocks"), candidates.column("total_blocks")
        known = (active >= 0.0) & (total > 0.0)
        used = active + candidates.column("reserved_decode_blocks")
        return np.where(known, np.fmax(1.0 - used / np.fmax(total, 1.0), 0.0), 0.0)
