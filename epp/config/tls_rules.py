"""Which TLS the ext_proc port speaks: Go's words for versions and suites, turned into gRPC's. Pure.

gRPC's library takes one list of suites for TLS 1.2 and always offers TLS 1.3, whose suites nobody
can choose (as in Go). Its oldest version is 1.2. It has no switch for "1.3 only": a list that
holds nothing but a pre-shared key suite does it, since no server here has such a key.
"""

from typing import Final

OLDEST = "VersionTLS12"
NEWEST = "VersionTLS13"
_NOTHING_OF_1_2 = "ECDHE-PSK-CHACHA20-POLY1305"

_TLS_1_3: Final = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)
_TLS_1_2: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
}


def check_version(name: str) -> str:
    """`name` if it can be the oldest version. Raises ValueError."""
    if name in {"VersionTLS10", "VersionTLS11"}:
        raise ValueError(f"TLS 1.2 is the oldest version here; use {OLDEST}")
    if name not in {OLDEST, NEWEST}:
        raise ValueError(f"unknown version; use {OLDEST} or {NEWEST}")
    return name


def check_suites(names: tuple[str, ...]) -> tuple[str, ...]:
    """`names` if gRPC has them all. Raises ValueError."""
    unknown = [name for name in names if name not in _TLS_1_2 and name not in _TLS_1_3]
    if unknown:
        raise ValueError(f"no cipher suite here is called {', '.join(unknown)}")
    return names


def suites_of_tls_1_2(min_version: str | None, names: tuple[str, ...]) -> str | None:
    """gRPC's list for checked words; None leaves gRPC's own list."""
    if min_version == NEWEST:
        return _NOTHING_OF_1_2
    if not names:
        return None
    return ":".join(_TLS_1_2[name] for name in names if name in _TLS_1_2) or _NOTHING_OF_1_2
