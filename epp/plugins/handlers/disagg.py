"""Choose who answers, then whether somebody else computes the prompt, and who.

Type: `disagg-profile-handler`.

The decode profile runs first and always. Where a prefill decider stands and says so, the prefill
profile chooses who computes the prompt; plugins of that profile see the destination as
`Request.peer`. Nobody to prefill means that the destination computes all of it.

Parameters:
- `profiles.decode` (`decode`), `profiles.prefill` (`prefill`): names of the profiles.
- `deciders.prefill` (none): name of the decider; without one nothing is split.
- `stageOrder` (`decode-first`): the only order.
- `profiles.encode`, `deciders.encode`: the encode stage is not offered; only its profile's name may
  stand here.
- `decodeProfile`, `prefillProfile`, `encodeProfile`, `prefillDeciderPluginName`,
  `deciderPluginName`, `encodeDeciderPluginName`: the older flat form of the same, never beside it.

```yaml
- type: disagg-profile-handler
  parameters:
    deciders:
      prefill: prefix-based-pd-decider
```
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from epp.framework import Course, Request, parameters

_NO_ENCODE = "the encode stage is not offered: each engine encodes media itself"


@parameters
class Profiles:
    decode: str = "decode"
    prefill: str = "prefill"
    encode: str = "encode"


@parameters
class Deciders:
    prefill: str = ""
    encode: str = ""


@dataclass(slots=True, kw_only=True)
class Disagg:
    stage_order: str = "decode-first"
    profiles: Profiles = Profiles()  # noqa: RUF009 - frozen
    deciders: Deciders = Deciders()  # noqa: RUF009 - frozen
    decode_profile: str = ""
    prefill_profile: str = ""
    encode_profile: str = ""
    prefill_decider_plugin_name: str = ""
    decider_plugin_name: str = ""
    encode_decider_plugin_name: str = ""

    def __post_init__(self) -> None:
        order = self.stage_order.lower().replace("-", "").replace("_", "")
        if order not in {"", "decode", "decodefirst"}:
            raise ValueError("stageOrder must be decode-first: the destination is chosen first")
        self._read_flat_form()
        if self.deciders.encode:
            raise ValueError(f"deciders.encode: {_NO_ENCODE}")

    def _read_flat_form(self) -> None:
        usual = Profiles()
        profiles = Profiles(
            decode=self.decode_profile or usual.decode,
            prefill=self.prefill_profile or usual.prefill,
            encode=self.encode_profile or usual.encode,
        )
        deciders = Deciders(
            prefill=self.prefill_decider_plugin_name or self.decider_plugin_name,
            encode=self.encode_decider_plugin_name,
        )
        if profiles == usual and deciders == Deciders():
            return
        if self.profiles != Profiles() or self.deciders != Deciders():
            raise ValueError("profiles and deciders stand beside the flat form; use one of them")
        self.profiles, self.deciders = profiles, deciders

    def fault(self, profiles: Collection[str], deciders: Collection[str], /) -> str:
        if self._decode not in profiles:
            return f"there is no profile {self._decode!r} to choose who answers"
        decider = self.deciders.prefill
        if not decider:
            return ""
        if decider not in deciders:
            known = ", ".join(sorted(deciders)) or "none"
            return f"there is no decider {decider!r}; known: {known}"
        if self._prefill not in profiles:
            return f"there is no profile {self._prefill!r} to choose who computes prompts"
        return ""

    def course(self, _: Request, __: Sequence[str], /) -> Course:
        if not self.deciders.prefill:
            return Course(destination=self._decode)
        return Course(
            destination=self._decode,
            prefill=self._prefill,
            prefill_decider=self.deciders.prefill,
        )

    @property
    def _decode(self) -> str:
        return self.profiles.decode or "decode"

    @property
    def _prefill(self) -> str:
        return self.profiles.prefill or "prefill"
