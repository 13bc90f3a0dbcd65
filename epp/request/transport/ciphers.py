"""TLS versions and cipher suites of the ext_proc port. Pure.

gRPC for Python speaks TLS 1.2 and 1.3. The one thing of TLS that it lets a server choose is the
suites of TLS 1.2, for the whole process and before its first use, by a variable of the environment.
The suites of TLS 1.3 are always on. So TLS 1.2 is switched off by allowing it one suite only that
needs a secret shared beforehand, which nobody has.
"""

from collections.abc import Iterable

from epp.errors import ConfigError

VARIABLE = "GRPC_SSL_CIPHER_SUITES"
"""Where gRPC looks for the value that `cipher_suites` gives."""

NONE = "ECDHE-PSK-AES128-CBC-SHA"
"""A suite that no handshake can use here."""

VERSIONS = ("VersionTLS12", "VersionTLS13")

_TLS12 = {
    f"TLS_ECDHE_{key}_WITH_{iana}": f"ECDHE-{key}-{openssl}"
    for key in ("ECDSA", "RSA")
    for iana, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        ("CHACHA20_POLY1305", "CHACHA20-POLY1305"),
    )
}
_TLS13 = frozenset(
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
)


def cipher_suites(min_version: str | None, names: Iterable[str]) -> str | None:
    """The value of VARIABLE for `--tls-min-version` and `--tls-cipher-suites`; None: leave it.

    Raises ConfigError for a version or a suite that cannot be had.
    """
    if min_version is not None and min_version not in VERSIONS:
        known = " or ".join(VERSIONS)
        raise ConfigError(
            "--tls-min-version", f"{min_version} is not spoken here (HTTP/2 needs 1.2): use {known}"
        )
    found = [_suite(name) for name in names]
    if min_version == "VersionTLS13":
        return NONE
    if not found:
        return None
    return ":".join(suite for suite in found if suite) or NONE


def _suite(name: str) -> str:
    """OpenSSL's name; nothing for a suite of TLS 1.3, which is on in any case."""
    if name in _TLS13:
        return ""
    if name not in _TLS12:
        known = ", ".join(_TLS12)
        raise ConfigError("--tls-cipher-suites", f"HTTP/2 has no use for {name}: choose of {known}")
    return _TLS12[name]
