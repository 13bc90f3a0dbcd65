"""`epp serve` in a process of its own: what it holds, where it listens, and how it ends."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import epp
from tests.timing import scaled

OWN_CODE = Path(epp.__file__).parents[1]
"""The same code as the test's, wherever that stands."""
_PORTS = ("--grpc-port", "--grpc-health-port", "--metrics-port", "--admin-port", "--state-port")


@dataclass(slots=True)
class PickerProcess:
    """A picker that serves."""

    process: asyncio.subprocess.Process
    ports: dict[str, int]
    """`grpc`, `health`, `metrics`, `admin`, and `state` where it has one."""
    log: Path

    @property
    def rss_bytes(self) -> int:
        """Memory that it holds."""
        return self._status("VmRSS")

    @property
    def peak_rss_bytes(self) -> int:
        """The most that it ever held."""
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", text)
        assert found
        return int(found[1]) * 1024

    @property
    def cpu_s(self) -> float:
        """Processor time that it took, its threads included."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def said(self) -> list[dict[str, Any]]:
        """Its log, line by line."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"]

    async def metric(self, name: str) -> float:
        """The sum over all series whose line begins with `name`."""
        url = f"http://127.0.0.1:{self.ports['metrics']}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            text = await response.text()
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def until_metric(self, name: str, wanted: float, *, within_s: float = 20) -> None:
        """Wait until `metric` of `name` is this."""
        async with asyncio.timeout(scaled(within_s)):
            while True:
                if await self.metric(name) == wanted:
                    return
                await asyncio.sleep(0.05)

    async def serving(self) -> bool:
        """What it tells gateways and the kubelet of its readiness."""
        ask = health_pb2.HealthCheckRequest(service="readiness")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.ports['health']}") as to:
            answer = await health_pb2_grpc.HealthStub(to).Check(ask)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def until_serving(self, wanted: bool, *, within_s: float = 20) -> None:
        async with asyncio.timeout(scaled(within_s)):
            while True:
                if await self.serving() == wanted:
                    return
                await asyncio.sleep(0.05)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def ended(self, within_s: float) -> int:
        """Its exit status. TimeoutError when it does not end."""
        async with asyncio.timeout(scaled(within_s)):
            return await self.process.wait()


@asynccontextmanager
async def picker_process(
    directory: Path, endpoints: Sequence[str], *flags: str, workers: int = 1
) -> AsyncIterator[PickerProcess]:
    """Serve these `ip:port` endpoints, which have no sidecars, once all of them are ready.

    In plaintext, with estimated tokens, on free ports of loopback; `flags` come on top.
    """
    entries = [
        {"name": f"e{number}", "address": host, "port": int(port), "sidecar": False}
        for number, (host, _, port) in enumerate(each.rpartition(":") for each in endpoints)
    ]
    file = directory / "endpoints.json"
    _write(file, json.dumps({"endpoints": entries}))
    more = ["--endpoints-file", str(file), "--workers", str(workers), *flags]
    async with cluster_process(directory, *more) as here:
        await here.until_metric("llm_d_epp_ready_endpoints", workers * len(entries))
        yield here


@asynccontextmanager
async def cluster_process(
    directory: Path, *flags: str, code: Path = OWN_CODE
) -> AsyncIterator[PickerProcess]:
    """Serve whatever members `flags` lead to, ready or not; everything else alike. `code`: the
    checkout that is run."""
    log = directory / "picker.log"
    argv = ["serve", "--host", "127.0.0.1", "--no-secure-serving", "--tokenizer", "estimate"]
    argv += [*(word for port in _PORTS for word in (port, "0")), *flags]
    with _created(log) as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from epp.cli import main; main()",
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=code,
            env={**os.environ, "PYTHONPATH": str(code)},
        )
    try:
        yield PickerProcess(process, await ports_of(process, log), log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ports_of(process: asyncio.subprocess.Process, log: Path) -> dict[str, int]:
    """As the picker says once it serves."""
    async with asyncio.timeout(scaled(30)):
        while True:
            text = _text(log)
            for line in text.splitlines():
                if '"serving"' in line:
                    said = json.loads(line)
                    names = ("grpc", "health", "metrics", "admin", "state")
                    return {name: said[name] for name in names if said.get(name)}
            assert process.returncode is None, f"the picker ended at once:\n{_text(log)}"
            await asyncio.sleep(0.02)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _created(path: Path) -> Any:
    return path.open("wb")


def _text(path: Path) -> str:
    return path.read_text()
