"""`epp local demo`: bring a fleet up, try every promise on it, print a table."""

import asyncio
import json
import os
import random
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from . import claims, narrate
from .fleet import Fleet, FleetSettings
from .local import INTERRUPTED, cancelled_by_signals
from .ports import auto_ports

ENGINES = 4


async def demo(*, run_dir: Path | None, as_json: bool, rng: random.Random) -> int:
    """Returns 0 when every claim holds, 1 when one does not. Raises LocalError without a fleet."""
    with cancelled_by_signals() as interrupt:
        try:
            return await _demo(run_dir, as_json=as_json, rng=rng)
        except asyncio.CancelledError:
            if not interrupt.asked:
                raise
            return INTERRUPTED


async def _demo(run_dir: Path | None, *, as_json: bool, rng: random.Random) -> int:
    ports = auto_ports(ENGINES, rng)
    settings = FleetSettings(engines=ENGINES, ports=ports, store="redis", run_dir=run_dir)
    narrator = narrate.Narrator(narrate.expected_parts(settings))
    results: list[claims.Result] = []
    began = time.monotonic()
    with narrator:
        async with Fleet(settings, narrator) as fleet:
            trial = claims.Trial(fleet, rng, time_scale())
            for name, check in claims.CHECKS:
                narrator.doing(f"checking: {name} …")
                results += await claims.run(trial, name, check)
    holds = all(result.holds for result in results)
    took_s = time.monotonic() - began
    if as_json:
        print(report(results, took_s))
    else:
        show(results, took_s)
        if not holds:
            narrator.say(f"A claim does not hold; the logs are in {fleet.run_dir / 'logs'}")
    return 0 if holds else 1


def time_scale() -> float:
    """Factor on limits of time, from `EPP_TIME_SCALE`; 1 when that is no positive number."""
    try:
        scale = float(os.environ.get("EPP_TIME_SCALE", "1"))
    except ValueError:
        return 1.0
    return scale if 0 < scale < 1000 else 1.0


def report(results: list[claims.Result], took_s: float) -> str:
    """The table for machines."""
    rows = [{"claim": r.claim, "measured": r.measured, "holds": r.holds} for r in results]
    holds = all(result.holds for result in results)
    return json.dumps({"holds": holds, "took_s": round(took_s, 1), "claims": rows})


def show(results: list[claims.Result], took_s: float, console: Console | None = None) -> None:
    """The table for people."""
    console = console or Console(highlight=False)
    table = Table(
        "claim", "measured", "holds", box=box.SIMPLE_HEAD, pad_edge=False, show_lines=False
    )
    for result in results:
        verdict = "[green]yes[/]" if result.holds else "[bold red]NO[/]"
        table.add_row(result.claim, result.measured, verdict)
        table.add_row()
    console.print(table)
    held = sum(result.holds for result in results)
    console.print(f"{held} of {len(results)} claims hold; {took_s:.0f} s, real HTTP through Envoy")
