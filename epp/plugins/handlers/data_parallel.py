"""Run the one profile, and reach all engines of a pod through its primary port.

Type: `data-parallel-profile-handler`; deprecated, `single-profile-handler` lets the gateway reach
each engine by its own port.

The request goes to the primary port of the chosen endpoint's pod; the header
`x-data-parallel-host-port` tells the sidecar there which engine was chosen.

Parameters:
- `primaryPort` (8000; 1 to 65535).

```yaml
- type: data-parallel-profile-handler
  parameters:
    primaryPort: 8000
```
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from epp.framework import Course, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    primary_port: int = 8000

    def __post_init__(self) -> None:
        if not 1 <= self.primary_port <= 65535:
            raise ValueError("primaryPort must lie between 1 and 65535")

    def fault(self, profiles: Collection[str], _: Collection[str], /) -> str:
        if len(profiles) == 1:
            return ""
        return f"takes one profile, here are {', '.join(sorted(profiles))}"

    def course(self, _: Request, profiles: Sequence[str], /) -> Course:
        return Course(destination=profiles[0], primary_port=self.primary_port)
