"""The shipped Envoy configurations against each other: `python -m tests.bench.gateways`.

All lead to the same picker and the same simulated engines, and requests take them in turn, so that
whatever else the machine does falls on all of them alike. Printed are, for each: the time to first
byte that it adds to an Envoy without a picker, by the prompt's size; Envoy's CPU for a request and
for a token of a streamed answer; and the picker's, less what engines' reports cost it meanwhile.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from epp.sim.benches.measure import cpu_s, quantile
from epp.sim.fleets import narrate
from epp.sim.fleets.fleet import Fleet
from epp.sim.fleets.parts import FleetSettings, envoy_part
from epp.sim.fleets.ports import HOST, auto_ports, free_ports
from epp.sim.gateway.envoy import EnvoySettings
from epp.sim.gateway.modes import Shape, Trailers
from epp.sim.promises import client
from tests.conformance.shipped import SHIPPED

ENGINES = 2
PROMPTS = (4_000, 40_000)
"""Bytes."""
TOKENS = 60
"""Of each streamed answer, at 50 a second."""
ENGINE_FLAGS = (
    *("--decode-step-s", "0.02", "--prefill-tokens-per-s", "10000000"),
    *("--max-num-seqs", "256", "--num-blocks", "65536", "--max-batched-tokens", "65536"),
)


@dataclass(slots=True)
class Way:
    """One configuration, and what was measured of it."""

    name: str
    url: str
    first_byte: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    """Seconds, by the prompt's bytes."""
    request_us: tuple[float, float] = (0.0, 0.0)
    """CPU of Envoy and of the picker."""
    token_us: tuple[float, float] = (0.0, 0.0)
    failed: int = 0


class Run:
    """One comparison; `rng` gives prompts that no cache has seen and the order of the ways."""

    def __init__(self, fleet: Fleet, ways: Sequence[Way], rng: random.Random) -> None:
        self._fleet = fleet
        self._ways = ways
        self._rng = rng

    async def first_bytes(self, count: int) -> None:
        for size in PROMPTS:
            for number in range(count + 5):
                for way in self._shuffled():
                    began = time.monotonic()
                    answer = await self._stream(way, size, tokens=1)
                    if number >= 5 and answer.done:
                        way.first_byte.setdefault(size, []).append(answer.arrivals[0] - began)

    async def cpu(self, streams: int, rounds: int) -> None:
        """Of `streams` answers at once, of one token and of many: a decision costs less in a crowd.
        In several rounds, whose sums count: a clock tick is 10 ms."""
        short = {way.name: [0.0, 0.0] for way in self._ways}
        long = {way.name: [0.0, 0.0] for way in self._ways}
        for _ in range(rounds):
            for way in self._shuffled():
                for sums, tokens in ((short[way.name], 1), (long[way.name], TOKENS)):
                    spent = await self._spent(way, streams, tokens)
                    sums[0] += spent[0] / rounds
                    sums[1] += spent[1] / rounds
        for way in self._ways:
            one, all_ = short[way.name], long[way.name]
            way.request_us = (one[0], one[1])
            way.token_us = (
                (all_[0] - one[0]) / (TOKENS - 1),
                (all_[1] - one[1]) / (TOKENS - 1),
            )

    async def _spent(self, way: Way, count: int, tokens: int) -> tuple[float, float]:
        """CPU microseconds of Envoy and of the picker for each of `count` requests at once."""
        pids = [self._fleet.supervisor.pid(name) for name in (f"envoy-{way.name}", "epp")]
        before = [cpu_s(pid) for pid in pids]
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(self._stream(way, PROMPTS[0], tokens=tokens))
        envoy, picker = (
            1e6 * (cpu_s(pid) - was) / count for pid, was in zip(pids, before, strict=True)
        )
        return envoy, picker

    async def _stream(self, way: Way, size: int, *, tokens: int) -> client.Stream:
        answer = client.Stream()
        word = f"{self._rng.getrandbits(64):016x}"
        prompt = " ".join(f"{word}{number}" for number in range(size // 20))
        await client.stream(self._fleet.session, way.url, prompt, max_tokens=tokens, into=answer)
        way.failed += not answer.done
        return answer

    def _shuffled(self) -> list[Way]:
        return self._rng.sample(self._ways, len(self._ways))


async def ways_of(fleet: Fleet, rng: random.Random) -> list[Way]:
    """An Envoy of each configuration before the fleet's picker, and one without."""
    wanted: list[tuple[str, Shape, Trailers]] = [("no-picker", "none", "skip")]
    wanted += [(each.name, each.shape, each.trailers) for each in SHIPPED]
    sidecars = [f"{HOST}:{port}" for port in fleet.settings.ports.sidecars]
    ways = []
    for name, shape, trailers in wanted:
        listen, admin = free_ports(2, rng)
        settings = EnvoySettings(
            listen_port=listen,
            admin_port=admin,
            ext_proc_port=fleet.settings.ports.grpc,
            endpoints=sidecars,
            tls=False,
            shape=shape,
            response_trailers=trailers,
        )
        fleet.supervisor.start(
            envoy_part(f"envoy-{name}", settings, fleet.run_dir, fleet.run_dir / "bin")
        )
        ways.append(Way(name, f"http://{HOST}:{listen}"))
    await fleet.supervisor.wait_ready()
    return ways


def table(ways: Sequence[Way]) -> str:
    """For people, and for docs/decisions/0005."""
    base = ways[0]
    titles = [f"+TTFT p50, {size // 1000} KB" for size in PROMPTS]
    titles += ["Envoy/request", "picker/request", "Envoy/token", "picker/token"]
    lines = [f"{'configuration':<20}" + "".join(f"{title:>19}" for title in titles)]
    for way in ways:
        cells = []
        for size in PROMPTS:
            spent, least = (1e3 * quantile(one.first_byte[size], 0.5) for one in (way, base))
            cells.append(f"{spent:.2f} ms" if way is base else f"{spent - least:+.2f} ms")
        cells += [
            f"{way.request_us[0]:.0f} us",
            f"{way.request_us[1] - base.request_us[1]:.0f} us",
            f"{way.token_us[0]:.1f} us",
            f"{way.token_us[1] - base.token_us[1]:.1f} us",
        ]
        lines.append(f"{way.name:<20}" + "".join(f"{cell:>19}" for cell in cells))
    failed = sum(way.failed for way in ways)
    return "\n".join(lines) + (f"\n{failed} requests FAILED" if failed else "")


async def main(arguments: argparse.Namespace) -> None:
    rng = random.Random(random.SystemRandom().getrandbits(64))
    settings = FleetSettings(
        engines=ENGINES, ports=auto_ports(ENGINES, rng), tls=False, engine_flags=ENGINE_FLAGS
    )
    narrator = narrate.Narrator(narrate.expected_parts(settings))
    with narrator:
        async with Fleet(settings, narrator) as fleet:
            ways = await ways_of(fleet, rng)
            run = Run(fleet, ways, rng)
            narrator.doing("time to first byte …")
            await run.first_bytes(arguments.requests)
            narrator.doing("CPU …")
            await run.cpu(arguments.streams, arguments.rounds)
    print(table(ways))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=10)
    asyncio.run(main(parser.parse_args()))
