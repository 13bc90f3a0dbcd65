"""Keep endpoints that may compute media for another one.

Type: `encode-filter`.

The label `llm-d.ai/role` is `encode`, `encode-prefill` or `encode-prefill-decode`.

Parameters: none.

```yaml
- type: encode-filter
```
"""

from dataclasses import dataclass

from epp.framework import Candidates, Mask, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeFilter:
    def keep(self, _: Request, candidates: Candidates, /) -> Mask:
        return candidates.column("serves_encode") > 0.0
