"""Run the one profile that is configured.

Type: `single-profile-handler`.

Stands where no handler is configured and there is one profile.

Parameters: none.

```yaml
- type: single-profile-handler
```
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from epp.framework import Course, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleProfile:
    def fault(self, profiles: Collection[str], _: Collection[str], /) -> str:
        if len(profiles) == 1:
            return ""
        told = ", ".join(sorted(profiles))
        return f"takes one profile, here are {told}; disagg-profile-handler takes several"

    def course(self, _: Request, profiles: Sequence[str], /) -> Course:
        return Course(destination=profiles[0])
