"""A whole fleet on loopback: which programs it consists of, and how they find each other.

    Envoy ── ext_proc ── picker ◄── log ── sidecar-0 … sidecar-n
      └──────────── requests ────────────► sidecar-i ──► engine-i

The parts are the real ones; only the engines are simulated.
"""

import asyncio
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp

from epp.errors import LocalError

from . import probes
from .binaries import find_envoy, find_redis
from .envoy import EnvoySettings, command, render
from .ports import HOST, Ports, require_free
from .supervisor import POLL_S, Part, Progress, Supervisor

Store = Literal["memory", "redis"]
Gateway = Literal["standalone", "full-duplex"]

POOL = "local"
MODEL = "sim"
RUNS = Path(".epp-local")
KEPT_RUNS = 5
"""Older directories of runs that have ended are removed."""
WARM_UP_EVERY = 10
"""Looks at the picker between two attempts to make an engine publish."""
SETTLE_S = 30.0
"""How long the picker may take to know every engine precisely once all parts are up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """What a fleet consists of."""

    engines: int
    ports: Ports
    store: Store = "memory"
    envoy: Gateway = "standalone"
    tls: bool = True
    """Between Envoy and the picker."""
    run_dir: Path | None = None
    """For logs and configuration; None: a new directory under `RUNS`."""
    engine_flags: tuple[str, ...] = ()
    """More flags of `epp local engine`, the same for all."""


class Fleet:
    """A running fleet: entering waits until every engine is known precisely; leaving ends it.

    Raises LocalError when a port is taken, a program is missing, or a part does not come up.
    """

    def __init__(
        self, settings: FleetSettings, progress: Progress = lambda _name, _what: None
    ) -> None:
        self.settings = settings
        self.run_dir = run_directory(settings.run_dir)
        self.supervisor = Supervisor(self.run_dir / "logs", progress)
        self._progress = progress
        self._scratch = self.run_dir / "bin"
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60)
        )
        """For requests to any part; no limit on connections."""

    async def __aenter__(self) -> Self:
        try:
            require_free(self.settings.ports, redis=self.settings.store == "redis")
            parts = list(self._parts())  # before anything starts: missing programs show here
            self._write_endpoints()
            if self.settings.store == "redis":
                self.supervisor.start(self._redis())
                await self.supervisor.wait_ready()
            for part in parts:
                self.supervisor.start(part)
            await self.supervisor.wait_ready()
            await self.wait_settled()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every part. Safe to call twice."""
        try:
            await self.session.close()
        finally:
            await self.supervisor.close()

    # Where things are

    @property
    def gateway(self) -> str:
        return f"http://{HOST}:{self.settings.ports.gateway}"

    @property
    def admin(self) -> str:
        return f"http://{HOST}:{self.settings.ports.admin}"

    @property
    def metrics(self) -> str:
        return f"http://{HOST}:{self.settings.ports.metrics}/metrics"

    def engine(self, index: int) -> str:
        return f"http://{HOST}:{self.settings.ports.engines[index]}"

    def sidecar(self, index: int) -> str:
        return f"http://{HOST}:{self.settings.ports.sidecars[index]}"

    # What the picker knows

    async def endpoints(self) -> list[dict[str, Any]]:
        """The picker's `/debug/endpoints`; empty while it does not answer."""
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self.session.get(f"{self.admin}/debug/endpoints") as answer:
                if answer.status == 200:
                    return list((await answer.json())["endpoints"])
        return []

    async def decisions(self, limit: int) -> list[dict[str, Any]]:
        """The picker's last decisions, newest first. Raises aiohttp.ClientError."""
        url = f"{self.admin}/debug/decisions?limit={limit}"
        async with self.session.get(url) as answer:
            answer.raise_for_status()
            return list((await answer.json())["decisions"])

    async def wait_settled(self, limit_s: float = SETTLE_S) -> None:
        """Return when Envoy routes and the picker follows the events of every engine.

        An engine is known precisely once its first event arrived, so each is given something
        small to compute. Raises LocalError when that takes longer than `limit_s`.
        """
        deadline = time.monotonic() + limit_s
        routes = probes.http(self.settings.ports.gateway, "/v1/models")
        for attempt in itertools.count():
            known = await self.endpoints()
            precise = {one["address"] for one in known if one["ready"] and one["rung"] == "precise"}
            if len(precise) == self.settings.engines and await routes():
                self._progress("fleet", "ready")
                return
            if attempt % WARM_UP_EVERY == 0:
                await self._warm_up(precise, attempt)
            if time.monotonic() > deadline:
                raise LocalError(
                    f"after {limit_s:g} s the picker knows {len(precise)} of "
                    f"{self.settings.engines} engines precisely; see the logs in "
                    f"{self.run_dir / 'logs'} and {self.admin}/debug/endpoints"
                )
            await asyncio.sleep(POLL_S)

    async def _warm_up(self, known: set[str], attempt: int) -> None:
        """Let every engine that is not `known` compute a few blocks, and so publish an event."""
        for index, port in enumerate(self.settings.ports.sidecars):
            if f"{HOST}:{port}" in known:
                continue
            prompt = f"warm up {attempt} " * 32
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
            with suppress(aiohttp.ClientError, TimeoutError):  # it may not be ready yet
                url = f"{self.sidecar(index)}/v1/completions"
                async with self.session.post(url, json=body) as answer:
                    await answer.read()

    # The parts

    def _parts(self) -> Iterator[Part]:
        yield from (self._engine(index) for index in range(self.settings.engines))
        yield self._picker()
        yield from (self._sidecar(index) for index in range(self.settings.engines))
        yield self._envoy()

    def _redis(self) -> Part:
        port = self.settings.ports.redis
        options = {
            "--port": str(port),
            "--bind": HOST,
            "--save": "",
            "--appendonly": "no",
            "--dir": str(self.run_dir),
        }
        binary = str(find_redis(self._scratch))
        flags = [word for pair in options.items() for word in pair]
        return Part(
            name="redis",
            command=(binary, *flags),
            address=f"redis://{HOST}:{port}/0",
            probe=probes.redis(port),
        )

    def _picker(self) -> Part:
        ports = self.settings.ports
        flags = [
            *("--host", HOST, "--pool-name", POOL),
            *("--endpoints-file", str(self._endpoints_file)),
            *("--grpc-port", str(ports.grpc), "--grpc-health-port", str(ports.health)),
            *("--metrics-port", str(ports.metrics), "--admin-port", str(ports.admin)),
            *("--state-port", str(ports.state), "--store", self.settings.store),
            *("--drain-timeout", "2", "--log-format", "text"),
            "--secure-serving" if self.settings.tls else "--no-secure-serving",
        ]
        if self.settings.store == "redis":
            flags += ["--redis-url", self._state_url]
        return Part(
            name="epp",
            command=own_command("serve", *flags),
            address=f"{HOST}:{ports.grpc}",
            probe=probes.http(ports.admin, "/healthz"),
            env=OWN_ENV,
        )

    def _engine(self, index: int) -> Part:
        port = self.settings.ports.engines[index]
        flags = [
            *("--host", HOST, "--port", str(port), "--model", MODEL),
            *("--name", f"engine-{index}", "--kv-events", self._kv_events(index)),
            *("--hash-seed", str(index + 1)),
            *self.settings.engine_flags,
        ]
        return Part(
            name=f"engine-{index}",
            command=own_command("local", "engine", *flags),
            address=f"http://{HOST}:{port}",
            probe=probes.http(port, "/health"),
            env=OWN_ENV,
        )

    def _sidecar(self, index: int) -> Part:
        ports = self.settings.ports
        flags = [
            *("--host", HOST, "--port", str(ports.sidecars[index])),
            *("--metrics-port", str(ports.sidecar_metrics[index])),
            *("--pool-name", POOL, "--name", f"default/engine-{index}"),
            *("--engine-url", self.engine(index), "--state-url", self._state_url),
            *("--kv-events", self._kv_events(index)),
            *("--settle", "0", "--grace", "2", "--log-format", "text"),
        ]
        return Part(
            name=f"sidecar-{index}",
            command=own_command("sidecar", *flags),
            address=f"http://{HOST}:{ports.sidecars[index]}",
            probe=probes.http(ports.sidecar_metrics[index], "/healthz"),
            env=OWN_ENV,
        )

    def _envoy(self) -> Part:
        ports = self.settings.ports
        config = EnvoySettings(
            listen_port=ports.gateway,
            admin_port=ports.envoy_admin,
            ext_proc_port=ports.grpc,
            endpoints=[f"{HOST}:{port}" for port in ports.sidecars],
            tls=self.settings.tls,
            shape=self.settings.envoy,
        )
        return envoy_part("envoy", config, self.run_dir, self._scratch)

    def _kv_events(self, index: int) -> str:
        return f"tcp://{HOST}:{self.settings.ports.kv_events[index]}"

    @property
    def _state_url(self) -> str:
        ports = self.settings.ports
        if self.settings.store == "redis":
            return f"redis://{HOST}:{ports.redis}/0"
        return f"tcp://{HOST}:{ports.state}"

    @property
    def _endpoints_file(self) -> Path:
        return self.run_dir / "endpoints.json"

    def _write_endpoints(self) -> None:
        members = [
            {"name": f"engine-{index}", "address": HOST, "port": port}
            for index, port in enumerate(self.settings.ports.sidecars)
        ]
        text = json.dumps({"endpoints": members}, indent=1)
        self._endpoints_file.write_text(text + "\n", encoding="utf-8")


OWN_ENV = {"PYTHONUNBUFFERED": "1"}


def own_command(*arguments: str) -> tuple[str, ...]:
    """A command of ours, run by this very interpreter; the working directory is not searched."""
    return (sys.executable, "-P", "-m", "epp.cli", *arguments)


def envoy_part(name: str, config: EnvoySettings, run_dir: Path, scratch: Path) -> Part:
    """An Envoy with this bootstrap, written to `run_dir`. Raises LocalError without a binary."""
    path = run_dir / f"{name}.json"
    path.write_text(render(config), encoding="utf-8")
    return Part(
        name=name,
        command=tuple(command(find_envoy(scratch), path)),
        address=f"http://{HOST}:{config.listen_port}",
        probe=probes.http(config.admin_port, "/ready"),
    )


def run_directory(wanted: Path | None, runs: Path = RUNS) -> Path:
    """The directory of one run, made if need be. Old runs under `runs` are removed.

    Falls back to the system's temporary directory where `runs` cannot be written.
    """
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        return wanted.resolve()
    try:
        runs.mkdir(exist_ok=True)
        _prune(runs)
        made = Path(tempfile.mkdtemp(prefix="run-", dir=runs)).resolve()
    except OSError:
        made = Path(tempfile.mkdtemp(prefix="epp-local-")).resolve()
    (made / "owner.pid").write_text(f"{os.getpid()}\n", encoding="ascii")
    return made


def _prune(runs: Path) -> None:
    ended = [run for run in runs.glob("run-*") if not _is_in_use(run)]
    ended.sort(key=lambda run: run.stat().st_mtime)
    for run in ended[: max(0, len(ended) - KEPT_RUNS + 1)]:
        shutil.rmtree(run, ignore_errors=True)


def _is_in_use(run: Path) -> bool:
    try:
        os.kill(int((run / "owner.pid").read_text(encoding="ascii")), 0)
    except (OSError, ValueError) as error:
        return isinstance(error, PermissionError)  # alive, and somebody else's
    return True
