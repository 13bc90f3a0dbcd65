"""TLS of the ext_proc port: a certificate from files, or a self-signed one.

Gateways do not verify the picker's certificate (the endpoint picker protocol knows no way to tell
them whom to trust), so a self-signed one is the default. gRPC offers ALPN `h2` by itself (A26).
"""

import ipaddress
import socket
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from epp.errors import ConfigError

VALID_DAYS = 3650
"""A picker restarts more often than this; its certificate is made anew each time."""


def server_credentials(
    cert_path: Path | None, *, now_ns: Callable[[], int] = time.time_ns
) -> grpc.ServerCredentials:
    """Credentials from `tls.crt` and `tls.key` in `cert_path`, self-signed without one.

    Raises ConfigError when a file cannot be read or is not what its name says.
    """
    if cert_path is None:
        certificate, key = self_signed(host_names(), now_ns=now_ns)
    else:
        certificate, key = read_pair(cert_path)
    return grpc.ssl_server_credentials([(key, certificate)])


def read_pair(directory: Path) -> tuple[bytes, bytes]:
    """(certificate chain, private key) from `tls.crt` and `tls.key`, which belong together.

    Raises ConfigError when a file cannot be read or is not what its name says.
    """
    certificate, key = _read(directory / "tls.crt"), _read(directory / "tls.key")
    _check(directory, certificate, key)
    return certificate, key


def host_names() -> list[str]:
    """Names by which this process may be called, for the certificate's SAN."""
    return sorted({"localhost", "127.0.0.1", "::1", socket.gethostname()})


def self_signed(
    names: Iterable[str], *, now_ns: Callable[[], int] = time.time_ns
) -> tuple[bytes, bytes]:
    """(certificate, private key) as PEM, for DNS names and IP addresses; EC P-256."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "endpoint-picker")])
    start = datetime.fromtimestamp(now_ns() / 1e9, UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of gateways may be late.
        .not_valid_before(start - timedelta(hours=1))
        .not_valid_after(start + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(list(map(_name, names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error


def _check(directory: Path, certificate: bytes, key: bytes) -> None:
    """gRPC takes any bytes and then refuses every handshake, so look before."""
    try:
        public = x509.load_pem_x509_certificate(certificate).public_key()
    except ValueError as error:
        raise ConfigError(str(directory / "tls.crt"), "is not a PEM certificate") from error
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            str(directory / "tls.key"), "is not an unencrypted PEM private key"
        ) from error
    if private.public_key() != public:
        raise ConfigError(
            str(directory / "tls.key"), "does not belong to the certificate beside it"
        )
