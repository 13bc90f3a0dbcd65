"""Start a real Envoy for a test, on free ports, with the bootstrap that the product writes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp

from epp.sim.fleets.binaries import find_envoy
from epp.sim.gateway.envoy import EnvoySettings, command, render
from tests.timing import scaled


@dataclass(slots=True)
class Gateway:
    """A running Envoy."""

    port: int
    admin_port: int
    access_log: Path
    process: asyncio.subprocess.Process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def stats(self, prefix: str = "") -> dict[str, int]:
        """Counters and gauges whose names begin with `prefix`."""
        text = await _get(self.admin_port, f"/stats?filter=^{prefix}&type=Counters")
        text += await _get(self.admin_port, f"/stats?filter=^{prefix}&type=Gauges")
        pairs = (line.split(": ") for line in text.splitlines() if ": " in line)
        return {name: int(value) for name, value in pairs if value.isdigit()}

    async def ext_proc(self, counter: str) -> int:
        """One of the ext_proc filter's own counters, such as `spurious_msgs_received`."""
        return (await self.stats(r"http\.gateway\.ext_proc")).get(
            f"http.gateway.ext_proc.{counter}", 0
        )

    async def picker_healthy(
        self, healthy: bool = True, *, pickers: int = 1, within_s: float = 10.0
    ) -> None:
        """Wait until Envoy's health check says so, of all `pickers`."""
        wanted = pickers if healthy else 0
        name = "cluster.picker.membership_healthy"
        async with asyncio.timeout(scaled(within_s)):
            while True:
                if (await self.stats(r"cluster\.picker\.membership"))[name] == wanted:
                    return
                await asyncio.sleep(0.02)

    async def log_lines(self, count: int) -> list[dict[str, Any]]:
        """Access log entries, once there are `count`; Envoy writes them every so often."""
        await _post(self.admin_port, "/reopen_logs")
        async with asyncio.timeout(scaled(15)):
            while True:
                text = _text(self.access_log)
                lines = text.splitlines()
                if len(lines) >= count and text.endswith("\n"):
                    return [json.loads(line) for line in lines]
                await asyncio.sleep(0.1)


@asynccontextmanager
async def gateway(
    directory: Path,
    settings: EnvoySettings,
    *,
    edit: Callable[[str], str] = str,
    pickers: int = 1,
) -> AsyncIterator[Gateway]:
    """Run Envoy in `directory` until the context ends; ports 0 in `settings` take free ones.

    `edit` may change the bootstrap that the product writes, and make it know more `pickers`.
    It is ready to serve, and has found the picker healthy, when the context begins.
    """
    log = settings.access_log or directory / "access.log"
    admin, output = directory / "admin", directory / "envoy.out"
    config = _write_config(directory, edit(render(replace(settings, access_log=log))))
    argv = [*command(find_envoy(directory), config), "--admin-address-path", str(admin)]
    with _created(output) as out:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        admin_port = await _admin_port(process, admin, output)
        listeners = json.loads(await _get(admin_port, "/listeners?format=json"))
        address = listeners["listener_statuses"][0]["local_address"]["socket_address"]
        running = Gateway(address["port_value"], admin_port, log, process)
        if settings.shape != "none":
            await running.picker_healthy(pickers=pickers)
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _admin_port(process: asyncio.subprocess.Process, path: Path, output: Path) -> int:
    """The admin port of an Envoy that is ready to serve."""
    async with asyncio.timeout(scaled(20)):
        while True:
            if process.returncode is not None:
                raise RuntimeError(f"Envoy ended at once:\n{_text(output)}")
            text = _text(path)
            if ":" in text:
                port = int(text.rpartition(":")[2])
                if "LIVE" in await _get(port, "/ready"):
                    return port
            await asyncio.sleep(0.02)


def _write_config(directory: Path, bootstrap: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "admin").unlink(missing_ok=True)
    config = directory / "envoy.json"
    config.write_text(bootstrap)
    return config


def _created(path: Path) -> BinaryIO:
    return path.open("wb")


def _text(path: Path) -> str:
    """What the file holds; nothing while it is not there."""
    return path.read_text() if path.exists() else ""


async def _get(port: int, path: str) -> str:
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


async def _post(port: int, path: str) -> None:
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.post(url) as response:
        await response.read()
