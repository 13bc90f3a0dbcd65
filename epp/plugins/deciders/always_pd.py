"""Split whatever can be split.

Type: `always-disagg-pd-decider`.

It counts nothing, so it needs neither tokens nor matches.

Parameters: none.

```yaml
- type: always-disagg-pd-decider
```
"""

from dataclasses import dataclass

from epp.framework import Endpoint, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class AlwaysPd:
    def decide(self, _: Request, __: Endpoint, /) -> str:
        return "split"
