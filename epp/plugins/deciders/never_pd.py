"""Split nothing; our own.

Type: `never-disagg-pd-decider`.

Keeps a configuration's prefill profile in place while nothing is handed over.

Parameters: none.

```yaml
- type: never-disagg-pd-decider
```
"""

from dataclasses import dataclass

from epp.framework import Endpoint, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverPd:
    def decide(self, _: Request, __: Endpoint, /) -> str:
        return "never"
