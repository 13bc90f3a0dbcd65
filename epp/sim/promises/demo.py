"""`epp local demo`: bring fleets up, try every promise on one of them, print a table."""

import asyncio
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from epp.sim.fleets import narrate, vllm
from epp.sim.fleets.fleet import Fleet
from epp.sim.fleets.local import INTERRUPTED, cancelled_by_signals
from epp.sim.fleets.parts import FleetSettings
from epp.sim.fleets.ports import auto_ports
from epp.sim.fleets.roster import EngineKind, roster

from . import claims, split_claims


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Which demo."""

    kind: EngineKind = "sim"
    """With real engines only the claims about them are checked: the rest needs no real one."""
    vllm_venv: Path | None = None
    run_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """One fleet, and the promises that are checked on it."""

    name: str
    fleet: FleetSettings
    checks: Sequence[tuple[str, claims.Check]]


def acts(settings: DemoSettings, rng: random.Random) -> list[Act]:
    """The demo's fleets, one after the other. Raises LocalError without real engines to start."""

    def fleet(name: str, **what: Any) -> FleetSettings:
        count = len(roster(what.get("engines", 0), what.get("prefill", 0), what.get("decode", 0)))
        directory = settings.run_dir and settings.run_dir / name
        return FleetSettings(ports=auto_ports(count, rng), run_dir=directory, **what)

    if settings.kind == "vllm":
        vllm.find(settings.vllm_venv)  # raises LocalError before anything is said
        real = fleet(
            "real", prefill=1, decode=1, kind="vllm", split="always", vllm_venv=settings.vllm_venv
        )
        return [Act("real engines that hand KV over", real, split_claims.REAL_CHECKS)]
    return [
        Act("four engines, embedded log", fleet("pool", engines=4), claims.CHECKS),
        Act("two engines, Redis", fleet("redis", engines=2, store="redis"), claims.REDIS_CHECKS),
        Act("prefill and decode", fleet("split", prefill=1, decode=1), split_claims.CHECKS),
    ]


async def demo(settings: DemoSettings, *, as_json: bool, rng: random.Random) -> int:
    """Returns 0 when every claim holds, 1 when one does not. Raises LocalError without a fleet."""
    with cancelled_by_signals() as interrupt:
        try:
            return await _demo(settings, as_json=as_json, rng=rng)
        except asyncio.CancelledError:
            if not interrupt.asked:
                raise
            return INTERRUPTED


async def _demo(settings: DemoSettings, *, as_json: bool, rng: random.Random) -> int:
    results: list[claims.Result] = []
    began = time.monotonic()
    for act in acts(settings, rng):
        narrator = narrate.Narrator(narrate.expected_parts(act.fleet))
        with narrator:
            narrator.doing(f"starting: {act.name} …")
            async with Fleet(act.fleet, narrator) as fleet:
                trial = claims.Trial(fleet, rng, time_scale())
                found: list[claims.Result] = []
                for name, check in act.checks:
                    narrator.doing(f"checking: {name} …")
                    found += await claims.run(trial, name, check)
        results += found
        if not as_json and not all(result.holds for result in found):
            narrator.say(f"A claim does not hold; the logs are in {fleet.run_dir / 'logs'}")
    took_s = time.monotonic() - began
    if as_json:
        print(report(results, took_s))
    else:
        show(results, took_s)
    return 0 if all(result.holds for result in results) else 1


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
