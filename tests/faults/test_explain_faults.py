"""Faults of what explains decisions: it must not tell those who may not know."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from epp import protocol
from epp.observe import logs
from epp.request.admin_token import AdminToken
from epp.sim.gateway.envoy import EnvoySettings
from tests.fakes.backend import backend
from tests.fakes.desk import ask
from tests.fakes.gateway import gateway
from tests.fakes.picker_process import picker_process
from tests.fakes.watched import watched

TOKEN = "s3cret-canary-s3cret-canary"
PAGES = (
    "/debug/decisions",
    "/debug/endpoints",
    "/debug/state",
    "/debug/mode",
    "/v1/routing/probe",
    "/healthz",
)


def _file(directory: Path) -> str:
    file = directory / "admin-token"
    file.write_text(TOKEN + "\n")
    return str(file)


async def test_G08_an_admin_port_off_loopback_shows_nothing_without_the_token(
    tmp_path: Path,
) -> None:
    """Protected by the token in `admin_port`; red when it asks for none off loopback."""
    host = ("--admin-host", "0.0.0.0", "--admin-token-file", _file(tmp_path))
    async with (
        backend("b") as engine,
        picker_process(tmp_path, [engine.address], *host) as picker,
        aiohttp.ClientSession() as session,
    ):
        for page in PAGES:
            url = f"http://127.0.0.1:{picker.ports['admin']}{page}"
            for call in (session.get, session.post):
                async with call(url) as answer:
                    assert answer.status == 401, page
        shown = {"authorization": f"Bearer {TOKEN}"}
        url = f"http://127.0.0.1:{picker.ports['admin']}/debug/endpoints"
        async with session.get(url, headers=shown) as answer:
            assert answer.status == 200
        assert TOKEN not in picker.log.read_text()


@pytest.mark.parametrize("given", ["", "wrong", TOKEN + "x", TOKEN.upper(), f"{TOKEN},{TOKEN}"])
async def test_G02_no_client_without_the_token_is_told_a_decision(given: str) -> None:
    """Protected by the comparison in `AdminToken.taken`; red when the header alone counts."""
    async with watched() as (desk, _, _):
        desk.director._admin = AdminToken(TOKEN)
        route = await desk.route(ask(), headers={protocol.ADMIN_TOKEN: given})
        assert not route.progress.response_headers(200, None)


async def test_G09_an_operators_token_reaches_no_plugin_no_log_and_no_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protected by the removal in `AdminToken.taken`; red when plugins see the header."""
    here = io.StringIO()
    monkeypatch.setattr(sys, "stderr", here)
    logs.configure("debug", "json")
    seen: list[Any] = []
    async with watched() as (desk, metrics, explain):
        desk.director._admin = AdminToken(TOKEN)
        whole = explain.decided

        def decided(*told: Any) -> None:
            seen.append(told)
            whole(*told)

        monkeypatch.setattr(explain, "decided", decided)
        headers = {protocol.ADMIN_TOKEN: TOKEN}
        await desk.route(ask(), headers=headers)
        await desk.decide(b"broken", headers=headers)
        metrics.refresh(desk.now)
        page, told = metrics.text().decode(), json.dumps(explain.last())
    assert len(seen) == 1
    for text in (repr(seen), here.getvalue(), page, told):
        assert TOKEN not in text


async def test_through_a_gateway_the_operator_is_told_and_the_engine_is_not(
    tmp_path: Path,
) -> None:
    flags = ("--admin-token-file", _file(tmp_path), "--pod-name", "epp-3")
    async with (
        backend("b") as engine,
        picker_process(tmp_path, [engine.address], *flags) as picker,
        gateway(
            tmp_path,
            EnvoySettings(
                listen_port=0,
                admin_port=0,
                ext_proc_port=picker.ports["grpc"],
                endpoints=[engine.address],
                tls=False,
                health_interval_s=0.1,
            ),
        ) as envoy,
        aiohttp.ClientSession(f"http://127.0.0.1:{envoy.port}") as session,
    ):
        told: list[str | None] = []
        for token in (TOKEN, "wrong", None):
            headers = {} if token is None else {protocol.ADMIN_TOKEN: token}
            async with session.post("/v1/completions", json=ask(), headers=headers) as answer:
                assert answer.status == 200
                told.append(answer.headers.get(protocol.DECISION))
        assert told[0] is not None
        assert told[1:] == [None, None]
        name, _, address = told[0].partition(" ")
        url = f"http://127.0.0.1:{picker.ports['admin']}/debug/decisions?request_id={name}"
        async with session.get(url) as answer:
            (decision,) = (await answer.json())["decisions"]
        assert not any(seen.values(protocol.ADMIN_TOKEN) for seen in engine.seen)
        first = next(seen for seen in engine.seen if seen.method == "POST")
        assert first.values(protocol.DECISION_ID) == [name]
        assert TOKEN not in picker.log.read_text()
    assert name.startswith("epp-3-")
    assert decision["chosen"][0]["address"] == address == engine.address
