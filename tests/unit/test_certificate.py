"""The certificate of the ext_proc port."""

from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from epp.errors import ConfigError
from epp.request.transport.tls import host_names, self_signed, server_credentials

NOW = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1e9)


def test_a_self_signed_certificate_names_the_host_and_is_valid_now() -> None:
    pem, key = self_signed(["localhost", "127.0.0.1", "::1", "pod-1"], now_ns=lambda: NOW)
    certificate = x509.load_pem_x509_certificate(pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "pod-1"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1"), ip_address("::1")]
    assert certificate.not_valid_before_utc == datetime(2026, 2, 28, 23, tzinfo=UTC)
    assert certificate.not_valid_after_utc > datetime(2036, 1, 1, tzinfo=UTC)
    assert b"PRIVATE KEY" in key


def test_the_names_of_this_host_always_hold_loopback() -> None:
    assert {"localhost", "127.0.0.1", "::1"} <= set(host_names())


def test_credentials_are_made_without_a_directory_and_from_one(tmp_path: Path) -> None:
    certificate, key = self_signed(["localhost"])
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    assert server_credentials(None)
    assert server_credentials(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tls.crt", None, "cannot be read"),
        ("tls.key", None, "cannot be read"),
        ("tls.crt", b"nonsense", "not a PEM certificate"),
        ("tls.key", b"nonsense", "not an unencrypted PEM private key"),
        ("tls.key", self_signed(["other"])[1], "does not belong"),
    ],
)
def test_a_certificate_that_cannot_work_is_refused_at_start(
    tmp_path: Path, file: str, content: bytes | None, message: str
) -> None:
    certificate, key = self_signed(["localhost"])
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        server_credentials(tmp_path)
    assert caught.value.where == str(tmp_path / file)
