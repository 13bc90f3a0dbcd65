"""`epp bench request`: what the way through Envoy, picker and sidecar costs, beside doing without.

Five ways to the same simulated engines are taken in turn, in random order within each round, so
that whatever else the machine does falls on all of them alike. Only differences and ratios of one
run mean something.

| way | passes |
|---|---|
| direct | the engine alone |
| sidecar | sidecar |
| envoy | Envoy without ext_proc, sidecar |
| no-op | Envoy, a picker that decides nothing, sidecar |
| full | Envoy, the picker, sidecar |
"""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from epp.sim.fleets import narrate, probes
from epp.sim.fleets.fleet import Fleet
from epp.sim.fleets.local import INTERRUPTED, cancelled_by_signals
from epp.sim.fleets.parts import OWN_ENV, FleetSettings, envoy_part, own_command
from epp.sim.fleets.ports import HOST, auto_ports, free_ports
from epp.sim.fleets.supervisor import Part
from epp.sim.gateway.envoy import EnvoySettings
from epp.sim.promises import client
from epp.sim.promises.client import Stream

from . import report as bench_report
from .measure import Spread, cpu_s, intervals

ENGINES = 4
PROMPT_BYTES = 4096
STREAM_TOKENS = 60
WARM_UP = 10
"""Requests of each way before anything counts."""
AT_ONCE = 8
"""Requests in flight while CPU is counted."""
ENGINE_FLAGS = (
    *("--decode-step-s", "0.02", "--prefill-tokens-per-s", "1000000"),
    *("--max-num-seqs", "128", "--num-blocks", "16384"),
)
"""An engine whose own time is short and steady."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """How much is measured."""

    requests: int = 200
    """Sequential requests of each way."""
    streams: int = 50
    """Concurrent streams of each way."""
    rounds: int = 3
    """How often the streams are run."""
    run_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the engines."""

    name: str
    url: Callable[[], str]
    """Where the next request goes; ways without a balancer take the engines in turn."""


@dataclass(slots=True)
class Samples:
    """What has been measured of one way, in seconds."""

    first_byte: list[float] = field(default_factory=list[float])
    between: list[float] = field(default_factory=list[float])
    failed: int = 0


async def bench(settings: BenchSettings, *, as_json: bool, rng: random.Random) -> int:
    """Returns 0 when the claims hold, else 1. Raises LocalError without a fleet."""
    with cancelled_by_signals() as interrupt:
        try:
            return await _bench(settings, as_json=as_json, rng=rng)
        except asyncio.CancelledError:
            if not interrupt.asked:
                raise
            return INTERRUPTED


async def _bench(settings: BenchSettings, *, as_json: bool, rng: random.Random) -> int:
    fleet_settings = FleetSettings(
        engines=ENGINES,
        ports=auto_ports(ENGINES, rng),
        tls=False,  # as for the picker that it is compared with
        run_dir=settings.run_dir,
        engine_flags=ENGINE_FLAGS,
    )
    narrator = narrate.Narrator(narrate.expected_parts(fleet_settings))
    with narrator:
        async with Fleet(fleet_settings, narrator) as fleet:
            ways = await _ways(fleet, rng)
            run = Run(fleet, ways, settings, rng, narrator.doing)
            report = await run.measure()
    print(bench_report.as_json(report) if as_json else bench_report.as_text(report))
    return 0 if report.holds else 1


async def _ways(fleet: Fleet, rng: random.Random) -> list[Way]:
    """Start what the comparison needs beside the fleet."""
    sidecars = [f"{HOST}:{port}" for port in fleet.settings.ports.sidecars]
    picker, listen_a, admin_a, listen_b, admin_b = free_ports(5, rng)
    fixed = Part(
        name="no-op-picker",
        command=own_command(
            *("bench", "fixed-picker", "--grpc-port", str(picker)),
            *(word for address in sidecars for word in ("--destination", address)),
        ),
        address=f"{HOST}:{picker}",
        probe=probes.listening(picker),
        env=OWN_ENV,
    )
    no_op = EnvoySettings(
        listen_port=listen_a,
        admin_port=admin_a,
        ext_proc_port=picker,
        endpoints=sidecars,
        tls=False,
    )
    plain = EnvoySettings(
        listen_port=listen_b,
        admin_port=admin_b,
        ext_proc_port=picker,
        endpoints=sidecars,
        tls=False,
        shape="none",
    )
    scratch = fleet.run_dir / "bin"
    fleet.supervisor.start(fixed)
    fleet.supervisor.start(envoy_part("envoy-no-op", no_op, fleet.run_dir, scratch))
    fleet.supervisor.start(envoy_part("envoy-plain", plain, fleet.run_dir, scratch))
    await fleet.supervisor.wait_ready()
    return [
        Way("direct", _in_turn([fleet.engine(index) for index in range(ENGINES)])),
        Way("sidecar", _in_turn([fleet.sidecar(index) for index in range(ENGINES)])),
        Way("envoy", _in_turn([f"http://{HOST}:{listen_b}"])),
        Way("no-op", _in_turn([f"http://{HOST}:{listen_a}"])),
        Way("full", _in_turn([fleet.gateway])),
    ]


def _in_turn(urls: list[str]) -> Callable[[], str]:
    return itertools.cycle(urls).__next__


class Run:
    """One measurement over all ways."""

    def __init__(
        self,
        fleet: Fleet,
        ways: list[Way],
        settings: BenchSettings,
        rng: random.Random,
        doing: Callable[[str], None],
    ) -> None:
        self._fleet = fleet
        self._ways = ways
        self._settings = settings
        self._rng = rng
        self._doing = doing
        self._samples = {way.name: Samples() for way in ways}

    async def measure(self) -> bench_report.Report:
        self._doing("warming up …")
        for way in self._ways:
            for _ in range(WARM_UP):
                await self._first_byte(way, Samples())
        await self._one_at_a_time()
        await self._streams()
        cpu = {
            "picker": await self._cpu("full", ["epp"]),
            "no-op picker": await self._cpu("no-op", ["no-op-picker"]),
            "sidecar": await self._cpu("sidecar", [f"sidecar-{index}" for index in range(ENGINES)]),
            "Envoy, full": await self._cpu("full", ["envoy"]),
            "Envoy, no ext_proc": await self._cpu("envoy", ["envoy-plain"]),
        }
        return bench_report.Report(
            requests=self._settings.requests,
            streams=self._settings.streams,
            first_byte_ms={n: Spread.of(s.first_byte) for n, s in self._samples.items()},
            between_ms={n: Spread.of(s.between) for n, s in self._samples.items()},
            cpu_us=cpu,
            failed=sum(samples.failed for samples in self._samples.values()),
        )

    async def _one_at_a_time(self) -> None:
        for number in range(self._settings.requests):
            if number % 20 == 0:
                self._doing(f"one request at a time: {number} of {self._settings.requests} …")
            for way in self._shuffled():
                await self._first_byte(way, self._samples[way.name])

    async def _first_byte(self, way: Way, samples: Samples) -> None:
        began = time.monotonic()
        answer = await self._stream(way, max_tokens=1)
        if answer.done:
            samples.first_byte.append(answer.arrivals[0] - began)
        else:
            samples.failed += 1

    async def _streams(self) -> None:
        for number in range(self._settings.rounds):
            for way in self._shuffled():
                self._doing(
                    f"{self._settings.streams} streams at once, {way.name}: "
                    f"round {number + 1} of {self._settings.rounds} …"
                )
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._stream(way, max_tokens=STREAM_TOKENS))
                        for _ in range(self._settings.streams)
                    ]
                samples = self._samples[way.name]
                for stream in (task.result() for task in tasks):
                    samples.between += intervals(stream.arrivals)
                    samples.failed += not stream.done

    async def _stream(self, way: Way, *, max_tokens: int) -> Stream:
        answer = Stream()
        await client.stream(
            self._fleet.session,
            way.url(),
            self._prompt(),
            max_tokens=max_tokens,
            into=answer,
        )
        return answer

    async def _cpu(self, name: str, parts: list[str]) -> float:
        """CPU microseconds of these parts for each request of that way."""
        self._doing(f"CPU of {', '.join(parts)} …")
        way = next(way for way in self._ways if way.name == name)
        pids = [self._fleet.supervisor.pid(part) for part in parts]
        count = 2 * self._settings.requests
        before = sum(map(cpu_s, pids))
        await _at_once(count, AT_ONCE, lambda: self._answered(way))
        return 1e6 * (sum(map(cpu_s, pids)) - before) / count

    async def _answered(self, way: Way) -> None:
        answer = await client.complete(self._fleet.session, way.url(), self._prompt())
        self._samples[way.name].failed += answer.status != 200

    def _prompt(self) -> str:
        """Text that no cache has seen."""
        word = f"{self._rng.getrandbits(64):016x}"
        return " ".join(f"{word}{index}" for index in range(PROMPT_BYTES // 20))

    def _shuffled(self) -> list[Way]:
        return self._rng.sample(self._ways, len(self._ways))


async def _at_once(count: int, width: int, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` `count` times, `width` of them at a time."""
    left = iter(range(count))

    async def one_after_another() -> None:
        for _ in left:
            await work()

    async with asyncio.TaskGroup() as group:
        for _ in range(width):
            group.create_task(one_after_another())
