"""Authorities that sign certificates for tests."""

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BEGIN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
END = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)
PEM = serialization.Encoding.PEM


class Authority:
    """Signs whatever it is asked to. `ca` is the file of those who believe it."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = directory / f"{name}.ca"
        self.ca.write_bytes(certificate.public_bytes(PEM))

    def signs(self, stem: str, host: str = "127.0.0.1") -> tuple[Path, Path]:
        """Files with a certificate for this host and its key; written over if they exist."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_named(stem), self._name, key)
            .add_extension(x509.SubjectAlternativeName([_of_host(host)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = self._directory / f"{stem}.crt", self._directory / f"{stem}.key"
        files[0].write_bytes(certificate.public_bytes(PEM))
        files[1].write_bytes(
            key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return files


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGIN)
        .not_valid_after(END)
    )


def _of_host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
