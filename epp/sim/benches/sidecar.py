"""`epp bench sidecar`: what a sidecar costs in front of an engine, beside plain proxies.

| way | what it is |
|---|---|
| direct | the engine alone |
| nginx | nginx as a plain reverse proxy, where it is installed |
| own | the sidecar on its own relay |
| aiohttp | the sidecar on the reference relay |
| toy | a proxy for prefill and decode as small as people write them (`toy`) |
| vllm-router | the router of that name in its P/D mode, where it is installed |

The last two split every request, so that nothing else is asked of them. The engine computes nothing
and the ways are taken in turn, round by round. CPU is of the proxy's process alone, without what it
uses while nobody asks; only ratios of one run mean something.
"""

import asyncio
import json
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from epp.sim.fleets import probes
from epp.sim.fleets.parts import OWN_ENV, own_command
from epp.sim.fleets.ports import HOST, free_ports
from epp.sim.fleets.supervisor import Part, Supervisor

from . import load, sidecar_report
from .measure import Moment, cpu_s, event_us
from .origin import EVENTS
from .sidecar_report import Way

BODY_BYTES = 4096
WARM_UP = 200
IDLE_S = 5.0
"""How long the proxies are watched while nobody asks."""
SETTLES_S = 0.5
"""How long streams flow before what they cost is looked at, and at their end after it."""
SPLIT = {"own", "aiohttp", "toy", "vllm-router"}
"""Ways that hand prompts over."""
ONLY_SPLIT = {"toy", "vllm-router"}
GAP_S = 0.02
"""Time between two events of a stream."""
_NGINX: Final = """\
daemon off; master_process off; worker_processes 1; error_log stderr crit; pid {run}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_buffer_size 64k; client_max_body_size 64m;
  client_body_temp_path {run}/body; proxy_temp_path {run}/proxy; fastcgi_temp_path {run}/f;
  uwsgi_temp_path {run}/u; scgi_temp_path {run}/s; keepalive_requests 1000000;
  upstream engine {{ server {host}:{engine}; keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen {host}:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering on; proxy_set_header Host $host;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    requests: int = 10_000
    """Plain requests of each way in each round."""
    streams: int = 64
    """Streams at once."""
    rounds: int = 3
    run_dir: Path | None = None


async def bench(settings: BenchSettings, *, as_json: bool, rng: random.Random) -> int:
    """Print what was measured; 0 when the claims hold, 1 when not or when nginx is missing."""
    with _directory(settings.run_dir) as run:
        async with Supervisor(run) as supervisor:
            ways = await Run(settings, supervisor, run, rng).measure()
    found = sidecar_report.Report.of(ways, streams=settings.streams)
    print(sidecar_report.as_json(found) if as_json else sidecar_report.as_text(found))
    return 0 if found.holds else 1


@contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with TemporaryDirectory() as made:
        yield Path(made)


class Run:
    """One measurement over all ways."""

    def __init__(
        self, settings: BenchSettings, supervisor: Supervisor, run: Path, rng: random.Random
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._run = run
        self._rng = rng
        self._engine, *self._ports = free_ports(12, rng)

    async def measure(self) -> list[Way]:
        ways = await self._start()
        for way in ways:
            warm = self._split_request() if way.only_splits else _request()
            await load.call(way.port, warm, count=WARM_UP, at_once=16)
        await self._watch_idle(ways)
        rounds = self._settings.rounds
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
            for way in self._rng.sample(ways, len(ways)):
                if not way.only_splits:
                    await self._plain(way)
                    await self._streams(way)
                if way.splits:
                    await self._split(way)
        return ways

    async def _start(self) -> list[Way]:
        engine = Part(
            name="engine",
            command=own_command(
                *("bench", "origin", "--port", str(self._engine), "--gap", str(GAP_S))
            ),
            address=f"{HOST}:{self._engine}",
            probe=probes.listening(self._engine),
            env=OWN_ENV,
        )
        key = self._run / "leg-key"
        key.write_text("k" * 32 + "\n", encoding="utf-8")
        parts = [engine, self._sidecar("own"), self._sidecar("aiohttp")]
        nginx = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
        if nginx is not None:
            parts.append(self._nginx(nginx))
        parts.append(self._toy())
        router = shutil.which("vllm-router")
        if router is not None:
            parts.append(self._router(router))
        for part in parts:
            self._supervisor.start(part)
        await self._supervisor.wait_ready()
        return [
            Way(
                name="direct" if part is engine else part.name,
                port=int(part.address.rpartition(":")[2]),
                pid=self._supervisor.pid(part.name),
                splits=part.name in SPLIT,
                only_splits=part.name in ONLY_SPLIT,
            )
            for part in parts
        ]

    def _sidecar(self, kind: str) -> Part:
        port, metrics = self._ports.pop(), self._ports.pop()
        members = [
            {"name": name, "address": HOST, "port": at}
            for name, at in ((kind, port), ("engine", self._engine))
        ]
        file = self._run / f"{kind}.json"
        file.write_text(json.dumps({"endpoints": members}), encoding="utf-8")
        return Part(
            name=kind,
            command=own_command(
                *("sidecar", "--pool-name", "bench", "--name", f"default/{kind}"),
                *("--engine-url", f"http://{HOST}:{self._engine}", "--host", HOST),
                *("--port", str(port), "--metrics-port", str(metrics), "--relay", kind),
                *("--state-url", f"tcp://{HOST}:{self._ports[0]}", "--log-level", "error"),
                *("--endpoints-file", str(file), "--leg-key-file", str(self._run / "leg-key")),
            ),
            address=f"{HOST}:{port}",
            probe=probes.http(port, "/health"),
            env=OWN_ENV,
        )

    def _nginx(self, program: str) -> Part:
        port = self._ports.pop()
        file = self._run / "nginx.conf"
        file.write_text(
            _NGINX.format(run=self._run, host=HOST, engine=self._engine, port=port),
            encoding="utf-8",
        )
        return Part(
            name="nginx",
            command=(program, "-p", str(self._run), "-c", str(file), "-e", "stderr"),
            address=f"{HOST}:{port}",
            probe=probes.listening(port),
        )

    def _toy(self) -> Part:
        port = self._ports.pop()
        return Part(
            name="toy",
            command=(
                *(sys.executable, "-m", "epp.sim.benches.toy"),
                *(str(port), f"http://{HOST}:{self._engine}"),
            ),
            address=f"{HOST}:{port}",
            probe=probes.listening(port),
        )

    def _router(self, program: str) -> Part:
        port, metrics = self._ports.pop(), self._ports.pop()
        # Two names, for it takes workers of one name for one.
        prefill, decode = (f"http://{host}:{self._engine}" for host in ("localhost", HOST))
        return Part(
            name="vllm-router",
            command=(
                *(program, "--vllm-pd-disaggregation", "--prefill", prefill, "--decode", decode),
                *("--host", HOST, "--port", str(port), "--prometheus-port", str(metrics)),
                *("--policy", "round_robin", "--log-level", "error"),
            ),
            address=f"{HOST}:{port}",
            probe=probes.http(port, "/health"),
        )

    async def _watch_idle(self, ways: list[Way]) -> None:
        before = [cpu_s(way.pid) for way in ways]
        await asyncio.sleep(IDLE_S)
        for way, at_first in zip(ways, before, strict=True):
            way.idle_share = (cpu_s(way.pid) - at_first) / IDLE_S

    async def _plain(self, way: Way) -> None:
        count = self._settings.requests
        way.plain_us.append(await self._cost(way, _request(), count))

    async def _streams(self, way: Way) -> None:
        """What events cost while all streams flow: neither their beginnings nor their ends."""
        count, tally = self._settings.streams, load.Tally()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                load.call(way.port, _request(stream=True), count=count, at_once=count, tally=tally)
            )
            await asyncio.sleep(SETTLES_S)
            before = _moment(way, tally)
            await asyncio.sleep(EVENTS * GAP_S - 2 * SETTLES_S)
            after = _moment(way, tally)
        way.event_us.append(event_us(before, after, way.idle_share))
        way.failed += tally.failed
        way.gaps_s += tally.gaps

    async def _split(self, way: Way) -> None:
        count = self._settings.requests // 4
        way.split_us.append(await self._cost(way, self._split_request(), count))

    def _split_request(self) -> bytes:
        return _request(f"x-prefiller-host-port: {HOST}:{self._engine}\r\n")

    async def _cost(self, way: Way, request: bytes, count: int) -> float:
        """CPU microseconds of the way's own process for each of so many, 32 at a time."""
        loop = asyncio.get_running_loop()
        before, began = cpu_s(way.pid), loop.time()
        tally = await load.call(way.port, request, count=count, at_once=32)
        idle = way.idle_share * (loop.time() - began)
        way.failed += tally.failed
        return 1e6 * max(0.0, cpu_s(way.pid) - before - idle) / count


def _moment(way: Way, tally: load.Tally) -> Moment:
    return Moment(asyncio.get_running_loop().time(), cpu_s(way.pid), tally.events)


def _request(fields: str = "", *, stream: bool = False) -> bytes:
    """A completion of about `BODY_BYTES` of prompt, as a gateway sends it."""
    more = ',"stream":true' if stream else ""
    prompt = "word " * (BODY_BYTES // 5)
    body = f'{{"model":"sim","max_tokens":8{more},"prompt":"{prompt}"}}'.encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: gateway.example\r\n"
        "user-agent: OpenAI/Python 1.99\r\naccept: application/json\r\n"
        "content-type: application/json\r\nauthorization: Bearer key\r\n"
        "x-request-id: 5f0c7c9e-0000-4000-8000-000000000000\r\nx-forwarded-proto: http\r\n"
        "x-envoy-expected-rq-timeout-ms: 15000\r\nx-epp-decision-id: d-1\r\n"
        f"{fields}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
