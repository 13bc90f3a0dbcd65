"""Proves to a sidecar that the picker of its pool named the pods of a handoff. Pure.

The header `x-epp-handoff` holds `v1;kid=<8 hex digits>;exp=<unix seconds>;mac=<64 hex digits>`, an
HMAC-SHA256 over the pool, the decision's id, the lists of prefill, encode and source pods, and the
expiry. Whoever decodes is not part of it, so that a gateway may go on to the next of its fallbacks
with the same headers. A key's id is made from the key: that two sides hold different ones can be
told from a forgery.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

LIFE_S = 60.0
"""How long a request may take from the decision to the sidecar, in seconds, besides what the
gateway's route lets it wait."""
SKEW_S = 30
"""Difference between two machines' clocks that is let pass."""

_SHAPE = re.compile(
    r"v1;kid=(?P<kid>[0-9a-f]{8});exp=(?P<exp>[0-9]{1,12});mac=(?P<mac>[0-9a-f]{64})"
)


_BLOCK = 64
"""Bytes of a block of SHA-256."""
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What is sealed; the lists as `joined` gives them."""

    pool: str
    decision_id: str
    prefill: str = ""
    encode: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class SealKeys:
    """The pool's keys: the current one seals, both are believed."""

    current: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)

    def seal(self, named: Named, now_s: float, life_s: float) -> str:
        """The header's value. `now_s` is wall-clock time."""
        expiry = int(now_s + life_s)
        made = _mac(self.current, named, expiry)
        return f"v1;kid={_key_id(self.current)};exp={expiry};mac={made}"

    def error(self, header: str, named: Named, now_s: float) -> str | None:
        """None for a genuine seal, else the stable reason why it is not believed."""
        shape = _SHAPE.fullmatch(header)
        if shape is None:
            return "seal-malformed"
        keys = (self.current,) if self.previous is None else (self.current, self.previous)
        if shape["kid"] not in {_key_id(key) for key in keys}:
            return "seal-key-unknown"
        expiry = int(shape["exp"])
        # every key is tried, so that time tells nothing about which one fits
        equal = [hmac.compare_digest(shape["mac"], _mac(key, named, expiry)) for key in keys]
        if not any(equal):
            return "seal-forged"
        return None if now_s <= expiry + SKEW_S else "seal-expired"


def joined(values: Iterable[str]) -> str:
    """One text for a list, however proxies spread it over header lines or spaced it."""
    items = (item.strip(" \t") for item in ",".join(values).split(","))
    return ",".join(item for item in items if item)


def mac(key: bytes, parts: Sequence[str]) -> str:
    """HMAC-SHA256 in hex. Each part is preceded by its length: no two lists give one text."""
    encoded = [part.encode("utf-8", "surrogateescape") for part in parts]
    inner, outer = _keyed(key)
    inner, outer = inner.copy(), outer.copy()
    inner.update(b"".join([b"%b%b" % (len(part).to_bytes(4, "big"), part) for part in encoded]))
    outer.update(inner.digest())
    return outer.hexdigest()


@lru_cache(maxsize=8)
def _keyed(key: bytes) -> "tuple[hashlib._Hash, hashlib._Hash]":
    """Both hashes of RFC 2104 with the key in them, to be copied: most of a short text's cost."""
    if len(key) > _BLOCK:
        key = hashlib.sha256(key).digest()
    key = key.ljust(_BLOCK, b"\0")
    return hashlib.sha256(key.translate(_INNER)), hashlib.sha256(key.translate(_OUTER))


def _mac(key: bytes, named: Named, expiry: int) -> str:
    lists = (named.prefill, named.encode, named.source)
    return mac(key, ("epp-handoff-v1", named.pool, named.decision_id, *lists, str(expiry)))


def _key_id(key: bytes) -> str:
    """Tells keys apart and tells nothing about them."""
    return mac(key, ("epp-key-id-v1",))[:8]
