"""Proves that a prefill leg comes from a sidecar of this pool. Pure; takes wall-clock seconds.

The header `x-epp-leg` holds `v1;exp=<unix seconds>;mac=<64 hex digits>`, an HMAC-SHA256 over
method, request target, request id, `ip:port` that is spoken to, and expiry. So a header that leaks
serves no other pod, path or request, and for `LIFE_S` seconds at most. Two keys are accepted while
one replaces the other; the current one signs.
"""

import hmac
import re
from dataclasses import dataclass, field

from epp.seals import mac

LEG_HEADER = "x-epp-leg"
LIFE_S = 60
"""How long a signed leg may take to arrive, in seconds; also the farthest expiry that is accepted,
but for `SKEW_S` of difference between two machines' clocks."""
SKEW_S = 30
MIN_KEY_BYTES = 16
REFUSED_STATUS = 421
"""Answer to a leg that does not prove itself. Not 401 or 403: those would pass for the engine's
word about the client and be shown to it, while this one leads to the next candidate."""

_SHAPE = re.compile(r"v1;exp=(?P<exp>[0-9]{1,12});mac=(?P<mac>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """What is signed. Both sides take it from the request itself, never from the header."""

    method: str
    path: str
    """Request target as sent, with its query."""
    request_id: str
    target: str
    """`ip:port` of the prefill sidecar, as `targets.Target` spells it."""


@dataclass(frozen=True, slots=True)
class LegKeys:
    """Keys of the pool. Raises ValueError for one that is too short to guess in vain."""

    current: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for key in self._accepted():
            if len(key) < MIN_KEY_BYTES:
                raise ValueError(f"a leg key needs at least {MIN_KEY_BYTES} bytes")

    def _accepted(self) -> tuple[bytes, ...]:
        return (self.current,) if self.previous is None else (self.current, self.previous)

    def sign(self, leg: Leg, now_s: float) -> str:
        """The header's value for a leg that starts at this wall-clock time."""
        expiry = int(now_s) + LIFE_S
        return f"v1;exp={expiry};mac={_mac(self.current, leg, expiry)}"

    def error(self, header: str | None, leg: Leg, now_s: float) -> str | None:
        """None for a genuine leg, else the stable reason why it is refused."""
        if header is None:
            return "leg-unsigned"
        shape = _SHAPE.fullmatch(header)
        if not shape:
            return "leg-malformed"
        expiry = int(shape["exp"])
        # every key is tried, so that time tells nothing about which one fits
        equal = [
            hmac.compare_digest(shape["mac"], _mac(key, leg, expiry)) for key in self._accepted()
        ]
        if not any(equal):
            return "leg-forged"
        if not now_s - SKEW_S <= expiry <= now_s + LIFE_S + SKEW_S:
            return "leg-expired"
        return None


def _mac(key: bytes, leg: Leg, expiry: int) -> str:
    parts = ("epp-leg-v1", leg.method, leg.path, leg.request_id, leg.target, str(expiry))
    return mac(key, parts)
