"""Keep the endpoints that a header of the request names: for tests only.

Type: `header-based-testing-filter`.

The header `test-epp-endpoint-selection` lists `ip` (all its ports) or `ip:port`, IPv6 in brackets
where a port follows. Without it nobody stays. Any client chooses its endpoint by it, so that it has
no place before users; `--conformance` does the same without a configuration.

Parameters: none.

```yaml
- type: header-based-testing-filter
```
"""

from dataclasses import dataclass

from epp.framework import Candidates, Request

HEADER = "test-epp-endpoint-selection"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderBasedTesting:
    def keep(self, request: Request, candidates: Candidates, /) -> list[bool]:
        named = {part.strip() for part in request.headers.get(HEADER, "").split(",")}
        hosts = {part.strip("[]") for part in named}
        return [
            one.address in named or one.address.rpartition(":")[0].strip("[]") in hosts
            for one in candidates
        ]
