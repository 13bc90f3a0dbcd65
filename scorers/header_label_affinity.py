"""Prefer endpoints whose label has the value of a request header.

Type: `header-label-affinity-scorer`. Alpha.

A preference only: other scorers can outweigh it. Where the header is missing or no endpoint has its
value, all score 0.

Parameters:
- `headerName` (required): the request header.
- `labelKey` (required): the label.

Formula: 1 where both are equal, else 0 (rule of the Gateway API Inference Extension's llm-d
router).

```yaml
- type: header-label-affinity-scorer
  parameters:
    headerName: x-preferred-zone
    labelKey: topology.kubernetes.io/zone
```
"""

from dataclasses import dataclass
from typing import ClassVar

from epp.framework import Candidates, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderLabelAffinity:
    stability: ClassVar = "alpha"

    header_name: str
    label_key: str

    def __post_init__(self) -> None:
        if not self.header_name.strip():
            raise ValueError("headerName must not be empty")
        if not self.label_key:
            raise ValueError("labelKey must not be empty")

    def score(self, request: Request, candidates: Candidates, /) -> list[float]:
        wanted = request.headers.get(self.header_name.strip().lower(), "")
        if not wanted:
            return [0.0] * len(candidates)
        key = self.label_key
        return [1.0 if labels.get(key) == wanted else 0.0 for labels in candidates.labels]
