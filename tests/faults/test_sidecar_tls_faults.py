"""Faults of certificates on a sidecar's connections (D27), on each of the three kinds."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.http.client import Call
from sidecar.http.refusals import LegError
from sidecar.proxy import Limits
from sidecar.shells import upstream_of
from sidecar.transfer.targets import Target
from sidecar.trust.tls import ClientTls, Outward, TlsFiles, server_context
from tests.fakes import relays
from tests.fakes.certificates import Authority
from tests.fakes.sidecars import LogReader, quick_settings, running_sidecar
from tests.fakes.split_pool import COMPLETIONS, SplitPool, prompt, split_pool, text_of
from tests.fakes.upstreams import RawUpstream, answer
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("each_relay")

BODY = {"prompt": prompt("tls"), "max_tokens": 4}
JSON = b"Content-Type: application/json\r\n"


class Parts:
    """Two authorities, and a certificate of the pool by the good one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.good, self.evil = (Authority(directory, name) for name in ("good", "evil"))
        self.cert, self.key = self.good.signs("sidecar")

    def settings(self, **changes: Any) -> dict[str, Any]:
        return {
            "tls_cert_file": self.cert,
            "tls_key_file": self.key,
            "leg_tls": True,
            "leg_tls_ca_file": self.good.ca,
            **changes,
        }

    @asynccontextmanager
    async def running(self, **changes: Any) -> AsyncIterator[SplitPool]:
        """A pool whose sidecars speak TLS with each other; `changes` are settings of them all."""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
        client.load_cert_chain(self.cert, self.key)
        settings = self.settings(**changes)
        async with split_pool(self.directory, session_tls=client, **settings) as pool:
            yield pool


async def test_D27_legs_and_clients_speak_tls_where_it_is_configured(tmp_path: Path) -> None:
    """Protected by `Outward.peers` at the connection to a target. Red when legs go in plain."""
    async with Parts(tmp_path).running() as pool:
        for body in (BODY, {**BODY, "stream": True}):
            status, got = await pool.post(body)
            assert (status, text_of(got)) == (200, text_of(await pool.alone(body)))
        await pool.decode.counted({("answered", "split"): 2})
        with pytest.raises(aiohttp.ClientError):
            await pool.session.get(pool.prefill.url.replace("https", "http") + "/health")


async def test_D27_a_stranger_at_a_targets_address_gets_no_prompt(tmp_path: Path) -> None:
    """Protected by verification in `client_context`. Red when any certificate is believed."""
    parts = Parts(tmp_path)
    async with parts.running(leg_tls_ca_file=parts.evil.ca) as pool:
        assert (await pool.post(BODY))[0] == 200
        assert pool.prefill.bodies == []
        await pool.decode.counted({("answered", "prefill-unreachable"): 1})


async def test_D27_a_certificate_of_another_name_is_none(tmp_path: Path) -> None:
    """Protected by `ClientTls.name_for`. Red when it gives the address at all times."""
    parts = Parts(tmp_path)
    async with parts.running(leg_tls_name="sidecar.pool") as pool:
        assert (await pool.post(BODY))[0] == 200
        await pool.decode.counted({("answered", "prefill-unreachable"): 1})
    parts.good.signs("sidecar", "sidecar.pool")
    async with parts.running(leg_tls_name="sidecar.pool") as pool:
        assert (await pool.post(BODY))[0] == 200
        await pool.decode.counted({("answered", "split"): 1})


async def test_D27_a_spare_connection_in_plain_text_carries_no_leg(tmp_path: Path) -> None:
    """Protected by `Engines._kept`, which looks for what speaks TLS only. Red when it looks by the
    address alone: an engine's port that was asked in plain text would get the next prompt so."""
    parts = Parts(tmp_path)
    outward = Outward(peers=ClientTls(TlsFiles(ca=parts.good.ca)))
    engine = RawUpstream(answer(b"{}", fields=JSON))
    async with (
        engine.running(),
        upstream_of(relays.kind, "http://127.0.0.1:1", Limits(), outward) as upstream,
    ):
        target = Target("127.0.0.1", engine.port)
        call = Call("GET", "/query", [(b"host", b"x")], None)
        asked = await upstream.send_to(target, call, plain=True)
        while await asked.next():
            pass
        asked.close()
        with pytest.raises(LegError):
            await upstream.send_to(target, call)
    assert len(engine.received) == 1


async def test_D27_verification_ends_by_a_flag_and_nothing_else(tmp_path: Path) -> None:
    """Protected by `TlsFiles.insecure`, which only the flag sets. Red when it is not heeded."""
    async with Parts(tmp_path).running(leg_tls_ca_file=None, leg_tls_insecure=True) as pool:
        assert (await pool.post(BODY))[0] == 200
        await pool.decode.counted({("answered", "split"): 1})


async def test_D27_without_a_certificate_of_the_pool_no_leg_is_taken(tmp_path: Path) -> None:
    """Protected by the verification in `server_context`. Red when no certificate is asked for."""
    parts = Parts(tmp_path)
    cert, key = parts.evil.signs("stranger")
    asks = {"tls_client_ca_file": parts.good.ca}
    mine = {"leg_tls_cert_file": parts.cert, "leg_tls_key_file": parts.key}
    foreign = {"leg_tls_cert_file": cert, "leg_tls_key_file": key}
    for shown, is_served in ((mine, True), ({}, False), (foreign, False)):
        async with parts.running(**asks, **shown) as pool:
            assert (await pool.post(BODY))[0] == 200
            assert bool(pool.prefill.bodies) is is_served
            await pool.decode.ended("answered")


async def test_D27_new_certificates_and_authorities_hold_without_a_restart(tmp_path: Path) -> None:
    """Protected by `ServerTls.take` and `ClientTls.take`. Red when either keeps what it had."""
    parts = Parts(tmp_path)
    believed = tmp_path / "believed.ca"
    believed.write_bytes(parts.good.ca.read_bytes())
    async with parts.running(leg_tls_ca_file=believed) as pool:
        asking, asked = pool.decode.sidecar.certificates, pool.prefill.sidecar.certificates
        assert asking.outward.peers
        assert asked.server
        old = (asking.outward.peers.current, asked.server.current)
        parts.evil.signs("sidecar")
        believed.write_bytes(parts.evil.ca.read_bytes())
        peers, server = asking.outward.peers, asked.server
        await until(lambda: peers.current is not old[0] and server.current is not old[1])
        assert (await pool.post(BODY))[0] == 200
        await pool.decode.counted({("answered", "split"): 1})


async def test_D27_half_of_a_pair_changes_nothing_and_is_counted(tmp_path: Path) -> None:
    """Protected by the catch in `Followed.run`. Red when a bad file ends the task or the old one's
    life."""
    parts = Parts(tmp_path)
    async with parts.running() as pool:
        Authority(tmp_path, "other").signs("another")[1].rename(parts.key)
        await until(lambda: pool.prefill.metric("files_refused_total") == 1)
        assert (await pool.post(BODY))[0] == 200
        await pool.decode.counted({("answered", "split"): 1})
        assert pool.prefill.metric("task_failures_total") == 0


async def test_D27_an_engines_own_ports_are_asked_in_plain_text(tmp_path: Path) -> None:
    """Protected by `plain` of `Upstream.send_to`: where engines meet, no sidecar listens. Red when
    TLS is spoken to whoever is not the local engine."""
    parts = Parts(tmp_path)
    outward = Outward(peers=ClientTls(TlsFiles(ca=parts.good.ca)))
    port = RawUpstream(answer(b"{}", fields=JSON))
    upstream = upstream_of(relays.kind, "http://127.0.0.1:1", Limits(), outward)
    async with port.running(), upstream:
        at, call = Target("127.0.0.1", port.port), Call("GET", "/query", [], None)
        answered = await upstream.send_to(at, call, plain=True)
        assert answered.head.status == 200
        answered.close()
        with pytest.raises(LegError):
            await upstream.send_to(Target("localhost", port.port), call)


@pytest.mark.parametrize("is_right", [True, False])
async def test_D27_an_engine_behind_https_is_watched_and_used(
    is_right: bool, tmp_path: Path
) -> None:
    """Protected by `Outward.engine`. Red when the engine is spoken to in plain text."""
    parts = Parts(tmp_path)
    files = TlsFiles(cert=parts.cert, key=parts.key)
    engine = RawUpstream(answer(b"{}", fields=JSON), tls=server_context(files))
    async with LogReader().running() as log, engine.running():
        settings = quick_settings(
            engine.port,
            log.server.port,
            engine_url=f"https://127.0.0.1:{engine.port}",
            engine_tls_ca_file=(parts.good if is_right else parts.evil).ca,
            model="sim",
        )
        async with running_sidecar(settings) as sidecar, aiohttp.ClientSession() as session:
            if is_right:
                await until(lambda: sidecar.engine.ready)
            url = f"http://127.0.0.1:{sidecar.port}{COMPLETIONS}"
            async with session.post(url, json=BODY) as response:
                assert response.status == (200 if is_right else 503)
            assert sidecar.engine.ready is is_right
            assert any(one.body for one in engine.received) is is_right
