"""Keep endpoints that may answer a request.

Type: `decode-filter`.

The label `llm-d.ai/role` is `decode`, `prefill-decode`, `encode-prefill-decode`, `both`, or there
is no label at all. An endpoint that only computes prompts is never a destination.

Parameters: none.

```yaml
- type: decode-filter
```
"""

from dataclasses import dataclass

from epp.framework import Candidates, Mask, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFilter:
    def keep(self, _: Request, candidates: Candidates, /) -> Mask:
        return candidates.column("serves_decode") > 0.0
