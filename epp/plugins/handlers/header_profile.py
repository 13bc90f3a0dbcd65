"""Run the profile that a header of the request names.

Type: `header-profile-handler`; alpha.

For callers that ask once per stage and know which one they need. With one profile there is nothing
to name. A header that names no profile is the client's fault and answered as such.

Parameters:
- `headerName` (`EPP-Profile`): upper and lower case are the same.
- `defaultProfile` (`decode`): runs where the header is missing or empty.

```yaml
- type: header-profile-handler
  parameters:
    defaultProfile: decode
```
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from epp.framework import Course, NoCourse, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderProfile:
    stability: ClassVar[str] = "alpha"
    header_name: str = "EPP-Profile"
    default_profile: str = "decode"

    def __post_init__(self) -> None:
        if not self.header_name.strip():
            raise ValueError("headerName must name a header")

    def fault(self, profiles: Collection[str], _: Collection[str], /) -> str:
        if len(profiles) == 1 or self.default_profile in profiles:
            return ""
        return f"defaultProfile {self.default_profile!r} is none of {', '.join(sorted(profiles))}"

    def course(self, request: Request, profiles: Sequence[str], /) -> Course:
        if len(profiles) == 1:
            return Course(destination=profiles[0])
        named = request.headers.get(self.header_name.strip().lower(), "").strip()
        if named and named not in profiles:
            known = ", ".join(profiles)
            raise NoCourse(f"header {self.header_name} names none of the profiles {known}")
        return Course(destination=named or self.default_profile)
