"""Choose who answers, then by a decider who computes the prompt: the older handler.

Type: `pd-profile-handler`; deprecated, `disagg-profile-handler` does the same.

Parameters:
- `decodeProfile` (`decode`), `prefillProfile` (`prefill`): names of the profiles.
- `deciderPluginName` (`always-disagg-pd-decider`): name of the decider's entry.
- `primaryPort` (0; up to 65535): as of `data-parallel-profile-handler`; 0: each engine has a port
  of its own.
- `prefixPluginType`, `prefixPluginName`, `prefixMatchInfoProducerName`: where matches come from;
  they have one source here.

```yaml
- type: pd-profile-handler
  parameters:
    deciderPluginName: prefix-based-pd-decider
```
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from epp.framework import Course, Request

_ONE_MATCH = "an endpoint has one match, the best that is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class PdProfile:
    without_effect: ClassVar[dict[str, str]] = {
        "prefix_plugin_type": _ONE_MATCH,
        "prefix_plugin_name": _ONE_MATCH,
        "prefix_match_info_producer_name": _ONE_MATCH,
    }
    decode_profile: str = "decode"
    prefill_profile: str = "prefill"
    decider_plugin_name: str = "always-disagg-pd-decider"
    primary_port: int = 0
    prefix_plugin_type: str = ""
    prefix_plugin_name: str = ""
    prefix_match_info_producer_name: str = ""

    def __post_init__(self) -> None:
        if not self.decider_plugin_name:
            raise ValueError("deciderPluginName must name a decider")
        if not 0 <= self.primary_port <= 65535:
            raise ValueError("primaryPort must lie between 1 and 65535, or be 0")

    def fault(self, profiles: Collection[str], deciders: Collection[str], /) -> str:
        for profile in (self.decode_profile, self.prefill_profile):
            if profile not in profiles:
                return f"there is no profile {profile!r}"
        if self.decider_plugin_name in deciders:
            return ""
        known = ", ".join(sorted(deciders)) or "none"
        return f"there is no decider {self.decider_plugin_name!r}; known: {known}"

    def course(self, _: Request, __: Sequence[str], /) -> Course:
        return Course(
            destination=self.decode_profile,
            prefill=self.prefill_profile,
            prefill_decider=self.decider_plugin_name,
            primary_port=self.primary_port,
        )
