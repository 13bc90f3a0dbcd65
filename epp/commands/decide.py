"""`epp bench decide`: what one decision costs in CPU, by the number of endpoints.

A real picker in this process, without a gateway. *Choosing* is what depends on the endpoints: both
indexes, filters, scorers and picker of the destination's profile. *All of it* is from a request as
the stream hands it over to its route: parsing, block keys, choosing, the split, the charge,
metrics and the explanation. Prompts share their first half, which by and by is held in many places.
Before each of the two, the load of an endpoint or two changes, so that both read it anew.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Self

import msgspec

from epp import listening
from epp.config.serve import serve_settings
from epp.deciding import director_of
from epp.errors import EppError
from epp.framework import EndpointId, Request
from epp.picker import Picker, clock
from epp.request import filters
from epp.request.director import PickDirector
from epp.request.exchange import Arrival, Progress, Route
from epp.request.offload import Offload
from epp.request.schedule import schedule
from epp.state.endpoints import Member
from epp.state.metrics_page import EngineMetrics
from epp.state.reports import LoadReport

SIZES = (10, 32, 100, 256, 1000)
BYTES_PER_TOKEN = 4
LINE = 72
"""Characters between two line breaks of a prompt: real ones have them, and JSON escapes them."""
WARM_UP = 50
"""Decisions before anything counts."""


class NotRoutedError(EppError):
    """A request of the bench got no endpoint."""

    reason = "bench"


@dataclass(frozen=True, slots=True)
class Spread:
    """CPU in microseconds, over many. What else the machine does makes caches cold, so that the
    least is the cost of the work alone."""

    least: float
    median: float
    p90: float

    @classmethod
    def of(cls, seconds: list[float]) -> Self:
        counted = sorted(1e6 * one for one in seconds)
        return cls(counted[0], statistics.median(counted), counted[int(len(counted) * 0.9)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one decision."""

    endpoints: int
    choosing: Spread
    all_of_it: Spread


async def measure(
    endpoints: int, *, prompt_tokens: int, decisions: int, config: dict[str, Any], chance: Random
) -> Cost:
    """Decide about as many requests over a pool of so many endpoints. `config`: settings of `epp
    serve` that choose the configuration."""
    settings = {"endpoints_file": "none", "tokenizer": "estimate", **config}
    picker = Picker(serve_settings({**settings, "metrics_staleness_threshold_s": 3600.0}))
    _fill(picker, endpoints, chance)
    async with listening.client() as session, listening.task_group() as tasks:
        with Offload() as offload:
            director = director_of(picker, session, offload, tasks.create_task)
            arrivals = _arrivals(prompt_tokens, WARM_UP + decisions, chance)
            bench = _Bench(picker, director, chance)
            for arrival in arrivals:
                await bench.decide(arrival)
    return Cost(
        endpoints=endpoints,
        choosing=Spread.of(bench.choosing[WARM_UP:]),
        all_of_it=Spread.of(bench.all_of_it[WARM_UP:]),
    )


def bench(
    sizes: list[int], *, prompt_tokens: int, decisions: int, config: dict[str, Any], as_json: bool
) -> str:
    """The curve over these sizes, as text or JSON."""
    costs = [
        asyncio.run(
            measure(
                size,
                prompt_tokens=prompt_tokens,
                decisions=decisions,
                config=config,
                chance=Random(size),
            )
        )
        for size in sizes
    ]
    if as_json:
        return json.dumps({"prompt_tokens": prompt_tokens, "cpu_us": [asdict(c) for c in costs]})
    lines = [
        f"CPU of one decision in microseconds: {prompt_tokens} prompt tokens, "
        f"{decisions} decisions of each size",
        f"{'':>9} {'choosing':^26} {'all of it':^26}",
        f"{'endpoints':>9}" + 2 * f" {'least':>8} {'median':>8} {'p90':>8}",
    ]
    for cost in costs:
        numbers = [
            f" {spread.least:>8.0f} {spread.median:>8.0f} {spread.p90:>8.0f}"
            for spread in (cost.choosing, cost.all_of_it)
        ]
        lines.append(f"{cost.endpoints:>9}{''.join(numbers)}")
    return "\n".join(lines)


def _fill(picker: Picker, endpoints: int, chance: Random) -> None:
    """A pool of plain engines, each with a load of its own."""
    members = [
        Member(
            id=EndpointId(picker.pool_id, f"pod-{number}", 8000),
            address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:8000",
            has_sidecar=False,
        )
        for number in range(endpoints)
    ]
    now = clock()
    picker.pool.replace(members, now)
    for member in members:
        picker.pool.scraped(member.id, _page(chance), now)


def _report(picker: Picker, chance: Random) -> None:
    """Some engine's page is read."""
    members = list(picker.pool.endpoints)
    picker.pool.scraped(members[chance.randrange(len(members))].id, _page(chance), clock())


def _page(chance: Random) -> EngineMetrics:
    report = LoadReport(
        waiting=chance.randrange(4),
        running=chance.randrange(32),
        kv_usage=chance.random(),
        total_blocks=10_000,
        block_tokens=16,
    )
    return EngineMetrics(start_ms=1, report=report)


def _arrivals(prompt_tokens: int, count: int, chance: Random) -> Iterator[Arrival]:
    size = prompt_tokens * BYTES_PER_TOKEN
    head = _text(size // 2, chance)
    for _ in range(count):
        prompt = head + _text(size - len(head), chance)
        body = msgspec.json.encode({"model": "m", "prompt": prompt, "max_tokens": 64})
        yield Arrival(
            headers={
                ":method": "POST",
                ":path": "/v1/completions",
                "content-type": "application/json",
            },
            body=body,
            has_body=True,
        )


def _text(size: int, chance: Random) -> str:
    text = chance.randbytes(size // 2 + 1).hex()
    return "\n".join(text[at : at + LINE] for at in range(0, size, LINE))[:size]


class _Bench:
    """Decides, and counts the seconds of CPU."""

    def __init__(self, picker: Picker, director: PickDirector, chance: Random) -> None:
        self.choosing: list[float] = []
        self.all_of_it: list[float] = []
        self._picker = picker
        self._director = director
        self._chance = chance
        self._under_way: Progress | None = None

    async def decide(self, arrival: Arrival) -> None:
        made = await self._director.preview(arrival)
        _report(self._picker, self._chance)
        begin = time.thread_time()
        self._choose(made.understood.request)
        self.choosing.append(time.thread_time() - begin)
        self._answer()
        begin = time.thread_time()
        route = await self._director.decide(arrival)
        self.all_of_it.append(time.thread_time() - begin)
        if not isinstance(route, Route):
            raise NotRoutedError(f"a request was refused: {route}")
        self._under_way = route.progress

    def _choose(self, request: Request) -> None:
        now = clock()
        found = self._picker.pool.candidates(
            request.keys,
            block_tokens=request.block_size,
            prompt_tokens=request.prompt_tokens,
            now=now,
        )
        decoders = filters.decoders(filters.eligible(found, None))
        built = self._picker.live.built
        course = built.handler.plugin.course(request, tuple(built.profiles))
        profile = built.profiles[course.destination]
        schedule(request, decoders, profile, self._chance, self._picker.ballot)

    def _answer(self) -> None:
        """The request before is answered, so that the load of its endpoint is another."""
        if self._under_way is not None:
            self._under_way.response_headers(200, None)
            self._under_way.body(1)
            self._under_way.finished()
