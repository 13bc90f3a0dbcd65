"""The client's session, by a header or a cookie.

Type: `session-id-producer`.

Plugins that keep sessions together read it as the attribute `SessionIDDataKey`. Without this
producer no request has one.

Parameters, of which exactly one is given:
- `headerName`: the header whose value names the session.
- `cookieName`: the cookie whose value does.

```yaml
- type: session-id-producer
  parameters:
    cookieName: llm-session
```
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionId:
    produces: ClassVar[frozenset[str]] = frozenset({"session-id"})
    header_name: str = ""
    cookie_name: str = ""

    def __post_init__(self) -> None:
        if bool(self.header_name.strip()) == bool(self.cookie_name.strip()):
            raise ValueError("exactly one of headerName and cookieName must be set")

    def session(self, headers: Mapping[str, str], /) -> str:
        if self.header_name:
            return headers.get(self.header_name.strip().lower(), "").strip()
        for cookie in headers.get("cookie", "").split(";"):
            name, _, value = cookie.partition("=")
            if name.strip() == self.cookie_name.strip():
                return value.strip().strip('"')
        return ""
