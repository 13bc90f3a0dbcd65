"""What people see of a fleet: progress on stderr, the map of what runs on stdout."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.table import Table

from .fleet import Fleet
from .parts import FleetSettings

CURL = (
    "curl -i {gateway}/v1/completions -H 'content-type: application/json' \\\n"
    """  -d '{{"model": "{model}", "prompt": "Once upon a time", "max_tokens": 16}}'"""
)


class Narrator:
    """Progress of a start: one moving line on a terminal, a line for each event elsewhere.

    Call it with a part's name and what happened; enter it to show, leave it to stop.
    """

    def __init__(
        self,
        expected: int,
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._expected = expected
        self._clock = clock
        self._began = clock()
        self._state: dict[str, str] = {}
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("starting …")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __call__(self, name: str, what: str) -> None:
        self._state[name] = what
        if self._status is None:
            self._console.print(f"{self._clock() - self._began:5.1f} s  {name} {what}")
            return
        ready = sum(self._state[part] == "ready" for part in self._state.keys() - {"fleet"})
        waiting = [part for part, state in self._state.items() if state.startswith("starting")]
        shown = ", ".join(waiting[:4]) + (" …" if len(waiting) > 4 else "")
        self._status.update(
            f"{ready} of {self._expected} ready; waiting for {shown or 'the picker'}"
        )

    def say(self, sentence: str) -> None:
        """One line that stays."""
        self._console.print(sentence)

    def doing(self, what: str) -> None:
        """What is being done now: replaces the moving line, or prints a line elsewhere."""
        if self._status is not None:
            self._status.update(what)
        else:
            self._console.print(what)


def expected_parts(settings: FleetSettings) -> int:
    """Parts of such a fleet."""
    return 2 * len(settings.members) + 2 + (settings.store == "redis")


def as_json(fleet: Fleet) -> str:
    """The map for machines."""
    supervisor = fleet.supervisor
    return json.dumps(
        {
            "gateway": fleet.gateway,
            "decisions": f"{fleet.admin}/debug/decisions",
            "endpoints": f"{fleet.admin}/debug/endpoints",
            "metrics": fleet.metrics,
            "envoy_admin": f"http://127.0.0.1:{fleet.settings.ports.envoy_admin}",
            "run_dir": str(fleet.run_dir),
            "parts": [
                {
                    "name": part.name,
                    "address": part.address,
                    "pid": supervisor.pid(part.name),
                    "log": str(supervisor.log(part.name)),
                }
                for part in supervisor.parts()
            ],
        }
    )


def program() -> str:
    """How this program is called where it was started: it need not be on the path."""
    called = sys.argv[0]
    known = Path(called).name != "epp" or shutil.which("epp") == called
    return "epp" if known else os.path.relpath(called)


def show_map(fleet: Fleet, console: Console | None = None) -> None:
    """The map for people: what runs where, a line to copy, and where to look."""
    console = console or Console(highlight=False, soft_wrap=True)
    supervisor = fleet.supervisor
    if console.is_terminal:
        table = Table("part", "address", "pid", "log", box=None, pad_edge=False)
        for part in supervisor.parts():
            pid, log = supervisor.pid(part.name), supervisor.log(part.name)
            table.add_row(part.name, part.address, str(pid), f"logs/{log.name}")
        console.print(table)
    else:
        for part in supervisor.parts():
            log = supervisor.log(part.name)
            print(f"{part.name:<17} {part.address:<28} {supervisor.pid(part.name):<8} {log}")
    own, at = program(), f"--admin {fleet.admin}"
    lines = [
        "",
        CURL.format(gateway=fleet.gateway, model=fleet.settings.model),
        "",
        f"why it went there   {own} explain ID {at}   (ID: the answer's x-request-id)",
        f"what is known       {own} top {at}",
        f"the same as JSON    {fleet.admin} lists its pages",
        f"metrics             {fleet.metrics}",
        f"logs and settings   {fleet.run_dir}",
        "",
        "Ctrl-C ends all of it.",
    ]
    print("\n".join(lines), flush=True, file=sys.stdout)
