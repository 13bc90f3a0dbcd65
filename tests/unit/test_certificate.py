"""The certificate of the ext_proc port."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from epp.errors import ConfigError, NoEndpoint
from epp.request.transport import ciphers
from epp.request.transport.certificate import Certificate
from epp.request.transport.grpc import serve
from epp.request.transport.tls import host_names, self_signed, server_credentials
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import ScriptedDirector
from tests.fakes.extproc_client import call, channel
from tests.fakes.waiting import until
from tests.timing import scaled

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


def _served(port: int, **limits: object) -> tuple[bytes, str | None]:
    """The certificate and the TLS version of a new connection."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for name, value in limits.items():
        setattr(context, name, value)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=scaled(5)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        return ssl.DER_cert_to_PEM_cert(tls.getpeercert(True) or b"").encode(), tls.version()


def _write(directory: Path, pair: tuple[bytes, bytes]) -> None:
    for name, content in zip(("tls.crt", "tls.key"), pair, strict=True):
        (directory / f"new.{name}").write_bytes(content)
        (directory / f"new.{name}").replace(directory / name)


async def test_a_new_certificate_is_served_to_new_connections_and_a_bad_one_is_not(
    tmp_path: Path,
) -> None:
    first, second, third = (self_signed(["localhost"]) for _ in range(3))
    _write(tmp_path, first)
    certificate = Certificate(tmp_path)
    heard: list[ConfigError | None] = []
    async with (
        serve(
            ScriptedDirector(lambda _: NoEndpoint("nobody")),
            host="127.0.0.1",
            port=0,
            credentials=certificate.credentials(),
        ) as server,
        channel(server.port, root=first[0]) as old,
        asyncio.TaskGroup() as tasks,
    ):
        get = envoy.request_headers({":path": "/", ":method": "GET"}, end=True)
        running = call(old)
        await running.send(get)
        assert await running.reply() is not None
        watch = tasks.create_task(certificate.follow(heard.append, interval_s=0.01, settle_s=0.02))
        for pair, result, served in (
            (second, type(None), second),
            ((third[0], second[1]), ConfigError, second),
            ((b"half", third[1]), ConfigError, second),
            (third, type(None), third),
        ):
            before = len(heard)
            _write(tmp_path, pair)
            await until(lambda before=before: len(heard) > before)
            assert isinstance(heard[-1], result)
            assert (await asyncio.to_thread(_served, server.port))[0] == served[0]
        # The connection of before never noticed.
        again = call(old)
        await again.send(get)
        assert await again.reply() is not None
        watch.cancel()
    assert (certificate.taken, certificate.refused) == (2, 2)


async def test_a_mounted_secret_is_followed_through_its_symlinks(tmp_path: Path) -> None:
    pairs = [self_signed(["localhost"]) for _ in range(2)]
    for number, pair in enumerate(pairs):
        (tmp_path / str(number)).mkdir()
        _write(tmp_path / str(number), pair)
    (tmp_path / "data").symlink_to("0")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for name in ("tls.crt", "tls.key"):
        (mounted / name).symlink_to(f"../data/{name}")
    certificate = Certificate(mounted)
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(
            certificate.follow(lambda _: None, interval_s=0.01, settle_s=0.02)
        )
        await asyncio.sleep(0.1)
        assert certificate.taken == 0
        (tmp_path / "next").symlink_to("1")
        (tmp_path / "next").replace(tmp_path / "data")
        await until(lambda: certificate.taken)
        watch.cancel()
    assert certificate.refused == 0


def test_a_certificate_that_cannot_work_at_first_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Certificate(tmp_path)


E128 = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
R256 = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"


@pytest.mark.parametrize(
    ("version", "names", "value"),
    [
        (None, [], None),
        ("VersionTLS12", [], None),
        (None, [E128, R256], "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384"),
        ("VersionTLS12", [E128, "TLS_AES_128_GCM_SHA256"], "ECDHE-ECDSA-AES128-GCM-SHA256"),
        (None, ["TLS_AES_128_GCM_SHA256"], ciphers.NONE),
        ("VersionTLS13", [], ciphers.NONE),
        ("VersionTLS13", [E128], ciphers.NONE),
    ],
)
def test_versions_and_suites_become_the_one_value_that_grpc_reads(
    version: str | None, names: list[str], value: str | None
) -> None:
    assert ciphers.cipher_suites(version, names) == value


@pytest.mark.parametrize(
    ("version", "names", "message"),
    [
        ("VersionTLS11", [], "use VersionTLS12 or VersionTLS13"),
        ("1.2", [], "use VersionTLS12 or VersionTLS13"),
        (None, ["TLS_RSA_WITH_AES_128_CBC_SHA"], f"choose of .*{E128}"),
        ("VersionTLS13", ["nonsense"], "choose of"),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_can(
    version: str | None, names: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ciphers.cipher_suites(version, names)


_SERVER = """
import asyncio, sys
from epp.errors import NoEndpoint
from epp.request.transport import tls
from epp.request.transport.grpc import serve

class Nobody:
    async def decide(self, _):
        return NoEndpoint("nobody")

async def main():
    credentials = tls.server_credentials(None)
    async with serve(Nobody(), host="127.0.0.1", port=0, credentials=credentials) as server:
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("version", "names", "old", "new"),
    [
        (None, [], "TLSv1.2", "TLSv1.3"),
        ("VersionTLS13", [], None, "TLSv1.3"),
        (None, [E128], "TLSv1.2", "TLSv1.3"),
        (None, [R256], None, "TLSv1.3"),
    ],
)
def test_grpc_does_as_that_value_says(
    version: str | None, names: list[str], old: str | None, new: str
) -> None:
    """In a process of its own: the value holds for a whole process. Our key is ECDSA, so a server
    of RSA suites alone has none for TLS 1.2."""
    value = ciphers.cipher_suites(version, names)
    env = {**os.environ, **({} if value is None else {ciphers.VARIABLE: value})}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert _served(port)[1] == new
        if old is None:
            with pytest.raises(ssl.SSLError):
                _served(port, maximum_version=ssl.TLSVersion.TLSv1_2)
        else:
            assert _served(port, maximum_version=ssl.TLSVersion.TLSv1_2)[1] == old
        process.stdin.close()
        assert process.wait(scaled(20)) == 0
