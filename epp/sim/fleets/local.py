"""`epp local up`: a fleet that runs until Ctrl-C, or until a part of it dies for good."""

import asyncio
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from . import narrate
from .fleet import Fleet
from .parts import FleetSettings
from .ports import Ports, auto_ports, default_ports, shifted_ports

INTERRUPTED = 130
ALL_ENDS = "a part died, so all of it ends; with --restart it would start again"


def chosen_ports(engines: int, base: int | None, *, auto: bool, rng: random.Random) -> Ports:
    """Ports as the flags say: any free ones, above a base, or those of the README."""
    if auto:
        return auto_ports(engines, rng)
    return default_ports(engines) if base is None else shifted_ports(engines, base)


class Interrupt:
    """Whether somebody asked us to end."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def cancelled_by_signals() -> Iterator[Interrupt]:
    """Within the block SIGINT, SIGTERM and SIGHUP cancel the current task.

    Cancellation runs every clean-up on its way; a second signal hurries it. The caller tells an
    asked-for end by `Interrupt.asked`.
    """
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    interrupt = Interrupt()

    def end() -> None:
        interrupt.asked = True
        task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, end)
    try:
        yield interrupt
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def up(settings: FleetSettings, *, as_json: bool, restart: bool) -> int:
    """Run a fleet. Returns 0 when it was asked to end, 1 when a part died by itself; with
    `restart` such a part is started again.

    Raises LocalError when it cannot start.
    """
    with cancelled_by_signals() as interrupt:
        try:
            return await _up(settings, as_json=as_json, restart=restart)
        except asyncio.CancelledError:
            if not interrupt.asked:
                raise
            return 0


async def _up(settings: FleetSettings, *, as_json: bool, restart: bool) -> int:
    narrator = narrate.Narrator(narrate.expected_parts(settings))
    fleet = Fleet(settings, narrator)
    with narrator:
        await fleet.__aenter__()
    try:
        if as_json:
            print(narrate.as_json(fleet), flush=True)
        else:
            narrate.show_map(fleet)
        ended = await fleet.supervisor.watch()
        while restart:
            print(f"epp: {ended.how}: it starts again", file=sys.stderr, flush=True)
            await fleet.supervisor.start_again(ended)
            ended = await fleet.supervisor.watch()
        print(f"epp: {ended}\nepp: {ALL_ENDS}", file=sys.stderr, flush=True)
        return 1
    finally:
        await fleet.close()
