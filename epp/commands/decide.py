"""`epp bench decide`: what one decision costs in CPU, by the number of endpoints.

A real picker in this process, without a gateway: requests go in as the stream would hand them over
and come out as routes, with parsing, block keys, both indexes, all plugins of the configuration,
the charge, metrics and the explanation. Prompts share their first half, which by and by is held in
many places. The pool has been read once, and every decision changes it.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from epp import listening
from epp.app import Picker, clock
from epp.config.serve import serve_settings
from epp.errors import EppError
from epp.framework import EndpointId
from epp.request.director import PickDirector
from epp.request.exchange import Arrival, Route
from epp.request.offload import Offload
from epp.state.endpoints import Member
from epp.state.metrics_page import EngineMetrics
from epp.state.reports import LoadReport

SIZES = (10, 32, 100, 256, 1000)
BYTES_PER_TOKEN = 4
WARM_UP = 50
"""Decisions before anything counts."""


class NotRoutedError(EppError):
    """A request of the bench got no endpoint."""

    reason = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU of one decision in microseconds, over many."""

    endpoints: int
    least: float
    median: float
    p90: float


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
            director = picker.director(session, offload, tasks.create_task)
            arrivals = _arrivals(prompt_tokens, WARM_UP + decisions, chance)
            spent = [await _decide(director, arrival) for arrival in arrivals]
    counted = sorted(1e6 * seconds for seconds in spent[WARM_UP:])
    return Cost(
        endpoints=endpoints,
        least=counted[0],
        median=statistics.median(counted),
        p90=counted[int(len(counted) * 0.9)],
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
        rows = [{name: getattr(cost, name) for name in Cost.__slots__} for cost in costs]
        return json.dumps({"prompt_tokens": prompt_tokens, "cpu_us": rows})
    lines = [
        f"CPU of one decision in microseconds: {prompt_tokens} prompt tokens, "
        f"{decisions} decisions of each",
        f"{'endpoints':>9} {'least':>8} {'median':>8} {'p90':>8}",
    ]
    lines += [
        f"{cost.endpoints:>9} {cost.least:>8.0f} {cost.median:>8.0f} {cost.p90:>8.0f}"
        for cost in costs
    ]
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
        report = LoadReport(
            waiting=chance.randrange(4),
            running=chance.randrange(32),
            kv_usage=chance.random(),
            total_blocks=10_000,
            block_tokens=16,
        )
        picker.pool.scraped(member.id, EngineMetrics(start_ms=1, report=report), now)


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
    return chance.randbytes(size // 2 + 1).hex()[:size]


async def _decide(director: PickDirector, arrival: Arrival) -> float:
    """Seconds of CPU until its route stands; then it is answered."""
    begin = time.thread_time()
    route = await director.decide(arrival)
    spent = time.thread_time() - begin
    if not isinstance(route, Route):
        raise NotRoutedError(f"a request was refused: {route}")
    route.progress.response_headers(200, None)
    route.progress.body(1)
    route.progress.finished()
    return spent
