"""Choose who answers, then whether others compute the prompt and the media, and who.

Type: `disagg-profile-handler`.

The decode profile runs first and always. Where a prefill decider stands and says so, the prefill
profile chooses who computes the prompt; where an encode decider does, the encode profile chooses
who computes the images, audio and video of it. Plugins of both profiles see the destination as
`Request.peer`. What nobody else can do the destination does itself.

With `stageOrder: prefill-first` the prefill profile, where there is one, runs before the decode
profile, whose plugins see who was chosen as `Request.peer`: for pools in which the endpoints that
compute prompts are scarce, and hold what was computed before. No decider is asked then.

Parameters:
- `profiles.decode` (`decode`), `profiles.prefill` (`prefill`), `profiles.encode` (`encode`): names
  of the profiles.
- `deciders.prefill`, `deciders.encode` (none): names of the deciders; without one there is no such
  stage.
- `stageOrder` (`decode-first`; or `prefill-first`): see above.
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
from dataclasses import dataclass, field

from epp.framework import Course, Request, parameters

_ORDERS = {
    "": False,
    "decode": False,
    "decodefirst": False,
    "prefill": True,
    "prefillfirst": True,
}
"""Whether who prefills is chosen first, by the words that the reference takes."""


def _order(text: str) -> str:
    return text.lower().replace("-", "").replace("_", "")


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
    _usual: Course = field(init=False, repr=False, compare=False)
    _first: Course | None = field(init=False, repr=False, compare=False)
    """Where there is a profile to choose who prefills; None: never."""

    def __post_init__(self) -> None:
        if _order(self.stage_order) not in _ORDERS:
            raise ValueError("stageOrder must be decode-first or prefill-first")
        self._read_flat_form()
        prefill_first = _ORDERS[_order(self.stage_order)]
        if prefill_first and self.deciders.prefill:
            raise ValueError("deciders.prefill is not asked with stageOrder prefill-first")
        self._usual = self._course(first=False)
        self._first = self._course(first=True) if prefill_first else None

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
        for decider, profile, what in (
            (self.deciders.prefill, self._prefill, "prompts"),
            (self.deciders.encode, self._encode, "media"),
        ):
            if decider and decider not in deciders:
                known = ", ".join(sorted(deciders)) or "none"
                return f"there is no decider {decider!r}; known: {known}"
            if decider and profile not in profiles:
                return f"there is no profile {profile!r} to choose who computes {what}"
        return ""

    def course(self, _: Request, profiles: Sequence[str], /) -> Course:
        return self._first if self._first is not None and self._prefill in profiles else self._usual

    def _course(self, *, first: bool) -> Course:
        prefill, encode = self.deciders.prefill, self.deciders.encode
        return Course(
            destination=self._decode,
            prefill=self._prefill if prefill or first else "",
            prefill_decider=prefill,
            prefill_first=first,
            encode=self._encode if encode else "",
            encode_decider=encode,
        )

    @property
    def _decode(self) -> str:
        return self.profiles.decode or "decode"

    @property
    def _prefill(self) -> str:
        return self.profiles.prefill or "prefill"

    @property
    def _encode(self) -> str:
        return self.profiles.encode or "encode"
