"""`epp serve` as a process: flags of its ports do what they say."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from epp.request.transport.tls import self_signed
from tests.fakes import extproc_messages as envoy
from tests.fakes.backend import backend
from tests.fakes.extproc_client import call, channel
from tests.fakes.picker_process import picker_process
from tests.fakes.waiting import until
from tests.timing import scaled


def _write(directory: Path, pair: tuple[bytes, bytes]) -> None:
    directory.mkdir(exist_ok=True)
    for name, content in zip(("tls.crt", "tls.key"), pair, strict=True):
        (directory / name).write_bytes(content)


def _certificate(port: int, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = newest
    with (
        socket.create_connection(("127.0.0.1", port), timeout=scaled(5)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        return ssl.DER_cert_to_PEM_cert(tls.getpeercert(True) or b"").encode()


async def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    first, second = self_signed(["localhost"]), self_signed(["localhost"])
    certificates = tmp_path / "certificates"
    _write(certificates, first)
    changes = "epp_certificate_changes_total"
    async with (
        backend("b") as engine,
        picker_process(
            tmp_path,
            [engine.address],
            *("--secure-serving", "--cert-path", str(certificates), "--enable-cert-reload"),
            *("--tls-min-version", "VersionTLS13"),
        ) as picker,
    ):
        port = picker.ports["grpc"]
        assert await asyncio.to_thread(_certificate, port) == first[0]
        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(_certificate, port, ssl.TLSVersion.TLSv1_2)
        _write(certificates, (second[0], b"half a key"))
        await picker.until_metric(f'{changes}{{result="refused"}}', 1)
        assert await asyncio.to_thread(_certificate, port) == first[0]
        _write(certificates, second)
        await picker.until_metric(f'{changes}{{result="taken"}}', 1)
        assert await asyncio.to_thread(_certificate, port) == second[0]
        events = [line["event"] for line in picker.said()]
        assert "new certificate refused, the old one stays" in events
        assert "certificate renewed" in events


@pytest.mark.parametrize("asked", [True, False])
async def test_streams_are_timed_only_where_that_was_asked_for(tmp_path: Path, asked: bool) -> None:
    flags = ["--enable-grpc-stream-metrics"] if asked else []
    count = "llm_d_epp_extproc_stream_duration_seconds_count"
    async with (
        backend("b") as engine,
        picker_process(tmp_path, [engine.address], *flags) as picker,
        channel(picker.ports["grpc"]) as to,
    ):
        stream = call(to)
        await stream.send(envoy.request_headers({":path": "/", ":method": "GET"}, end=True))
        await stream.replies(1)
        stream.cancel()
        await picker.until_metric("llm_d_epp_extproc_streams_inflight", 0)
        assert await picker.metric(count) == asked


async def test_a_second_signal_changes_nothing(tmp_path: Path) -> None:
    async with (
        backend("b") as engine,
        picker_process(tmp_path, [engine.address], "--drain-timeout", "2s") as picker,
        channel(picker.ports["grpc"]) as to,
    ):
        stream = call(to)
        await stream.send(envoy.request_headers({":path": "/", ":method": "GET"}, end=True))
        await stream.replies(1)
        picker.terminate()
        await until(lambda: any(line["event"] == "leaving" for line in picker.said()))
        picker.terminate()
        # The stream outlives the drain time and is cut.
        assert await picker.ended(8) == 0
