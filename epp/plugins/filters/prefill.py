"""Keep endpoints that may compute a prompt for another one.

Type: `prefill-filter`.

The label `llm-d.ai/role` is `prefill`, `encode-prefill`, `prefill-decode`, `encode-prefill-decode`
or `both`.

Parameters: none.

```yaml
- type: prefill-filter
```
"""

from dataclasses import dataclass

from epp.framework import Candidates, Mask, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFilter:
    def keep(self, _: Request, candidates: Candidates, /) -> Mask:
        return candidates.column("serves_prefill") > 0.0
