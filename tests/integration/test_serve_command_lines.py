"""`epp serve` as a process, started by other people's command lines."""

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.timing import scaled

CONFIG = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
WORDS = ("taken", "refused")
FREE_PORTS = ["--metrics-port=0", "--admin-port=0", "--state-port=0"]


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[dict[str, dict[str, Any]]]:
    """The log lines of a picker up to `serving`, by their event."""
    environment = {**os.environ, "NAMESPACE": "from-env", "POD_NAME": "epp-0"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp.cli", "serve", *arguments),
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert process.stderr is not None
    lines: dict[str, dict[str, Any]] = {}
    try:
        async with asyncio.timeout(scaled(30.0)):
            while "serving" not in lines:
                raw = await process.stderr.readline()
                assert raw, lines
                if raw.startswith(b"{"):
                    line = json.loads(raw)
                    lines[line["event"]] = line
        yield lines
        process.terminate()
        async with asyncio.timeout(scaled(30.0)):
            await process.stderr.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
def endpoints(tmp_path: Path) -> str:
    path = tmp_path / "endpoints.yaml"
    path.write_text("endpoints:\n  - {name: a, address: 127.0.0.1, port: 1}\n")
    return str(path)


async def test_the_arguments_of_the_conformance_suite_start_a_picker(endpoints: str) -> None:
    async with serving(
        *("--pool-name", "X", "--pool-namespace", "app-backend", "--zap-encoder", "json"),
        *("--grpc-port", "0", "--grpc-health-port", "0", "--endpoints-file", endpoints),
        *FREE_PORTS,
    ) as lines:
        loaded = lines["pool loaded"]
        assert (loaded["pool"], loaded["namespace"], loaded["replica"]) == (
            "X",
            "app-backend",
            "epp-0",
        )
        assert loaded["endpoints"] == 1


async def test_a_picker_that_wants_tls_1_3_speaks_nothing_older(endpoints: str) -> None:
    async with serving(
        *("-tls-min-version", "VersionTLS13", "-grpc-port=0", "-grpc-health-port=0"),
        *("-endpoints-file", endpoints, *FREE_PORTS),
    ) as lines:
        port = lines["serving"]["grpc"]
        assert lines["pool loaded"]["namespace"] == "from-env"
        assert await _handshake(port, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await _handshake(port, ssl.TLSVersion.TLSv1_2)


async def _handshake(port: int, version: ssl.TLSVersion) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    spoken = writer.get_extra_info("ssl_object").version()
    writer.close()
    return spoken


async def test_a_configuration_is_followed_by_a_running_picker(
    endpoints: str, tmp_path: Path
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG)
    async with serving(
        *("--endpoints-file", endpoints, "--config-file", str(config)),
        *("--grpc-port", "0", "--grpc-health-port", "0", *FREE_PORTS),
    ) as lines:
        url = f"http://127.0.0.1:{lines['serving']['metrics']}/metrics"
        taken, refused = (f'epp_config_changes_total{{result="{word}"}}' for word in WORDS)
        _write(config, CONFIG + "plugins: [{type: queue-scorer}]\n")
        await _metric(url, taken, 1.0)
        _write(config, CONFIG + "plugins: [{type: no-such-scorer}]\n")
        page = await _metric(url, refused, 1.0)
        assert "epp_config_current 0.0" in page
        assert f"{taken} 1.0" in page


OBJECTIVE = "{apiVersion: llm-d.ai/v1alpha2, kind: InferenceObjective, metadata: {name: gold}}"


async def test_a_file_of_objectives_is_followed(endpoints: str, tmp_path: Path) -> None:
    objectives = tmp_path / "o.yaml"
    objectives.write_text(OBJECTIVE)
    async with serving(
        *("--endpoints-file", endpoints, "--objectives-file", str(objectives)),
        *("--grpc-port", "0", "--grpc-health-port", "0", *FREE_PORTS),
    ) as lines:
        url = f"http://127.0.0.1:{lines['serving']['metrics']}/metrics"
        taken, refused = (f'epp_objectives_changes_total{{result="{word}"}}' for word in WORDS)
        await _metric(url, "epp_objectives_current", 1.0)
        _write(objectives, OBJECTIVE.replace("gold", "silver"))
        await _metric(url, taken, 1.0)
        _write(objectives, OBJECTIVE.replace("kind", "king"))
        page = await _metric(url, refused, 1.0)
        assert "epp_objectives_current 0.0" in page
        assert f"{taken} 1.0" in page


async def refused(*arguments: str) -> str:
    """What a picker says that does not start."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp.cli", "serve", *arguments, *FREE_PORTS),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(scaled(30.0)):
        _, said = await process.communicate()
    assert process.returncode == 2
    return said.decode()


async def test_a_bad_file_of_objectives_stops_the_start_with_its_place(
    endpoints: str, tmp_path: Path
) -> None:
    objectives = tmp_path / "o.yaml"
    objectives.write_text(OBJECTIVE.replace("gold", "Gold"))
    said = await refused("--endpoints-file", endpoints, "--objectives-file", str(objectives))
    assert said.startswith(f"epp: {objectives}:1:70 'name': expected at most 253")


async def test_a_bad_configuration_stops_the_start_with_its_place(
    endpoints: str, tmp_path: Path
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG + "plugins: [{type: no-such-scorer}]\n")
    said = await refused("--endpoints-file", endpoints, "--config-file", str(config))
    assert said.startswith(f"epp: {config}:3:12 unknown plugin type 'no-such-scorer'")


def _write(path: Path, text: str) -> None:
    path.write_text(text)


async def _metric(url: str, name: str, value: float) -> list[str]:
    """Wait until the page says so; its lines then."""
    async with asyncio.timeout(scaled(15.0)), aiohttp.ClientSession() as session:
        while True:
            async with session.get(url) as answer:
                page = (await answer.text()).splitlines()
            if f"{name} {value}" in page:
                return page
            await asyncio.sleep(0.05)
