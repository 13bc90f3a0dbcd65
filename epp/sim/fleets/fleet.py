"""A whole fleet on loopback: which programs it consists of, and how they find each other.

    Envoy ── ext_proc ── picker ◄── log ── sidecar-0 … sidecar-n
      └──────────── requests ────────────► sidecar-i ──► engine-i

The parts are the real ones; the engines are simulated, or real ones on CPUs.
"""

import asyncio
import itertools
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from epp.errors import LocalError

from . import probes
from .parts import FleetSettings, Parts
from .ports import HOST, require_free
from .supervisor import POLL_S, Progress, Supervisor

RUNS = Path(".epp-local")
KEPT_RUNS = 5
"""Older directories of runs that have ended are removed."""
WARM_UP_EVERY = 10
"""Looks at the picker between two attempts to make an engine publish."""
SETTLE_S = {"sim": 30.0, "vllm": 120.0}
"""How long the picker may take to know every engine precisely once all parts are up."""


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
        self.parts = Parts(settings, self.run_dir)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60)
        )
        """For requests to any part; no limit on connections."""

    async def __aenter__(self) -> Self:
        try:
            require_free(self.settings.ports, redis=self.settings.store == "redis")
            waves = self.parts.waves()  # before anything starts: what is missing shows here
            self.parts.write_files()
            if self.settings.store == "redis":
                self.supervisor.start(self.parts.redis())
                await self.supervisor.wait_ready()
            for wave in waves:
                for part in wave:
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

    async def wait_settled(self, limit_s: float | None = None) -> None:
        """Return when Envoy routes and the picker follows the events of every engine.

        An engine is known precisely once its first event arrived, so each is given something
        small to compute. Raises LocalError when that takes longer than `limit_s`; None:
        `SETTLE_S`.
        """
        limit_s = SETTLE_S[self.settings.kind] if limit_s is None else limit_s
        members = len(self.settings.members)
        deadline = time.monotonic() + limit_s
        routes = probes.http(self.settings.ports.gateway, "/v1/models")
        for attempt in itertools.count():
            known = await self.endpoints()
            precise = {one["address"] for one in known if one["ready"] and one["rung"] == "precise"}
            if len(precise) == members and await routes():
                self._progress("fleet", "ready")
                return
            if attempt % WARM_UP_EVERY == 0:
                await self._warm_up(precise, attempt)
            if time.monotonic() > deadline:
                raise LocalError(
                    f"after {limit_s:g} s the picker knows {len(precise)} of "
                    f"{members} engines precisely; see the logs in "
                    f"{self.run_dir / 'logs'} and {self.admin}/debug/endpoints"
                )
            await asyncio.sleep(POLL_S)

    async def _warm_up(self, known: set[str], attempt: int) -> None:
        """Let every engine that is not `known` compute a few blocks, and so publish an event."""
        for index, port in enumerate(self.settings.ports.sidecars):
            if f"{HOST}:{port}" in known:
                continue
            prompt = f"warm up {attempt} " * 32
            body = {"model": self.settings.model, "prompt": prompt, "max_tokens": 1}
            with suppress(aiohttp.ClientError, TimeoutError):  # it may not be ready yet
                url = f"{self.sidecar(index)}/v1/completions"
                async with self.session.post(url, json=body) as answer:
                    await answer.read()


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
