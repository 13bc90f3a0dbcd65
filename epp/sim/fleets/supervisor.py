"""Start programs, wait until they are ready, notice when one dies, and leave none behind.

Every part runs in a session of its own, so that Ctrl-C reaches only us and the parts end in an
orderly way; `tether` ends them when we die without having had the chance. Nothing here runs as a
background task: whoever wants to know of a death awaits `watch`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from epp.errors import LocalError

from . import affinity

POLL_S = 0.05
STOP_S = 5.0
"""How long a part may take to end after SIGTERM before it is killed."""
AGAIN_S = 1.0
"""Until a part that died is started again."""
TELL_EVERY_S = 15.0
"""Between two words about a part that is still starting."""
MAX_LOG_BYTES = 32 * 1024 * 1024
"""A log that outgrows this starts over: a fleet may run for days."""
TAIL_LINES = 15
_TAIL_BYTES = 16 * 1024

_TETHER = Path(__file__).with_name("tether.py")

Probe = Callable[[], Awaitable[bool]]
"""Whether a part is ready. Bounded in time, never raises for a part that is not up yet."""
Progress = Callable[[str, str], None]
"""Told a part's name and what happened to it: `starting`, `starting (30 s)`, `ready`, `ended`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One program of a fleet."""

    name: str
    command: tuple[str, ...]
    """Program (an absolute path) and arguments."""
    address: str
    """Where people reach it, for the map."""
    probe: Probe
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables besides our own."""
    ready_s: float = 30.0
    """How long it may take until `probe` says yes."""
    starts_others: bool = False
    """Whether it consists of several processes, which all must end when we die."""
    cpus: frozenset[int] | None = None
    """The CPUs that it may use once it is ready; None: all that it has chosen itself."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A part that ended although nobody asked it to."""

    name: str
    code: int
    """Exit code; negative: the signal that killed it."""
    log: Path
    tail: str

    @property
    def how(self) -> str:
        how = f"was killed by signal {-self.code}" if self.code < 0 else f"ended with {self.code}"
        return f"{self.name} {how}"

    def __str__(self) -> str:
        return f"{self.how}; the end of {self.log}:\n{self.tail}"


@dataclass(slots=True)
class _Running:
    part: Part
    process: subprocess.Popen[bytes]
    expected_to_end: bool = False
    swept: bool = False
    was_ready: bool = False

    def sweep(self) -> None:
        """End what the part has started and left behind. Once: its number may be used again."""
        if self.swept or self.process.poll() is None:
            return
        self.swept = True
        with suppress(ProcessLookupError):  # as it should be: nobody is left
            os.killpg(self.process.pid, signal.SIGKILL)


def _silent(_name: str, _what: str) -> None:
    """Progress for callers who want none."""


class Supervisor:
    """Owns the programs started through it. Leaving the `async with` block ends all of them."""

    def __init__(self, log_dir: Path, progress: Progress = _silent) -> None:
        self._log_dir = log_dir
        self._progress = progress
        self._running: dict[str, _Running] = {}
        log_dir.mkdir(parents=True, exist_ok=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def parts(self) -> list[Part]:
        """In the order of their start."""
        return [running.part for running in self._running.values()]

    def log(self, name: str) -> Path:
        return self._log_dir / f"{name}.log"

    def pid(self, name: str) -> int:
        """Raises LocalError when there is no such part."""
        return self._find(name).process.pid

    def alive(self, name: str) -> bool:
        running = self._running.get(name)
        return running is not None and running.process.poll() is None

    def start(self, part: Part) -> None:
        """Start a part, or start it again after it ended. Returns at once."""
        if self.alive(part.name):
            raise LocalError(f"{part.name} runs already")
        tether = [sys.executable, "-I", "-S", str(_TETHER), *(["--group"] * part.starts_others)]
        command = [*tether, str(os.getpid()), *part.command]
        with self.log(part.name).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  the fleet's own commands
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **part.env},
                start_new_session=True,
            )
        self._running[part.name] = _Running(part, process)
        self._progress(part.name, "starting")

    async def start_again(self, ended: Exit) -> None:
        """Start a part that died, a moment later, without waiting until it is ready."""
        await asyncio.sleep(AGAIN_S)
        running = self._find(ended.name)
        running.sweep()
        self.start(running.part)

    async def wait_ready(self, names: Iterable[str] | None = None) -> None:
        """Return when all these parts (default: all) are ready.

        Raises LocalError with the end of the log when one ends or takes too long.
        """
        waiting = [self._find(name) for name in (self._running if names is None else names)]
        started = time.monotonic()
        told = 0
        while waiting:
            ready = await asyncio.gather(*(running.part.probe() for running in waiting))
            for running, is_ready in zip(waiting, ready, strict=True):
                if (code := running.process.poll()) is not None:
                    raise LocalError(f"while starting, {self._exit(running, code)}")
                if is_ready and not running.was_ready:
                    running.was_ready = True
                    if running.part.cpus is not None:
                        affinity.move(running.process.pid, running.part.cpus)
                    self._progress(running.part.name, "ready")
            waiting = [one for one, is_ready in zip(waiting, ready, strict=True) if not is_ready]
            waited = time.monotonic() - started
            for running in waiting:
                if waited > running.part.ready_s:
                    raise LocalError(self._too_slow(running.part))
                if waited // TELL_EVERY_S > told:
                    self._progress(running.part.name, f"starting ({waited:.0f} s)")
            told = int(waited // TELL_EVERY_S)
            if waiting:
                await asyncio.sleep(POLL_S)

    async def watch(self) -> Exit:
        """Wait until a part ends although nobody asked it to."""
        while True:
            for running in self._running.values():
                code = running.process.poll()
                if code is not None and not running.expected_to_end:
                    running.expected_to_end = True
                    self._progress(running.part.name, "ended")
                    return self._exit(running, code)
            self.bound_logs()
            await asyncio.sleep(POLL_S)

    def bound_logs(self, limit: int = MAX_LOG_BYTES) -> None:
        """Empty every log that grew beyond `limit` bytes."""
        for name in self._running:
            path = self.log(name)
            if path.stat().st_size > limit:
                os.truncate(path, 0)  # parts append, so they go on at the new end

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a part and whatever it started. Ignored when it has ended."""
        running = self._find(name)
        running.expected_to_end = True
        if running.process.poll() is None:
            os.killpg(running.process.pid, number)

    async def kill(self, name: str) -> None:
        """End a part as a crash would: SIGKILL, no last words."""
        self.signal(name, signal.SIGKILL)
        await self._reap([self._find(name)], STOP_S)

    async def stop(self, name: str) -> None:
        """End a part in an orderly way; kill it when it does not comply in time."""
        await self._end([self._find(name)])

    async def restart(self, name: str) -> None:
        """Stop a part if it runs, start it again and wait until it is ready."""
        running = self._find(name)
        await self._end([running])
        self.start(running.part)
        await self.wait_ready([name])

    async def close(self) -> None:
        """End everything, all at once. Safe to call twice."""
        ending = list(self._running.values())
        try:
            await self._end(ending)
        finally:  # reached with work to do only when this very call is cancelled
            for running in ending:
                if running.process.poll() is None:
                    os.killpg(running.process.pid, signal.SIGKILL)
                    running.process.wait()

    async def _end(self, ending: list[_Running]) -> None:
        for running in ending:
            running.expected_to_end = True
            if running.process.poll() is None:
                os.killpg(running.process.pid, signal.SIGTERM)
        if not await self._reap(ending, STOP_S):
            for running in ending:
                if running.process.poll() is None:
                    os.killpg(running.process.pid, signal.SIGKILL)
            await self._reap(ending, STOP_S)
        for running in ending:
            running.sweep()

    async def _reap(self, ending: list[_Running], limit_s: float) -> bool:
        """Wait until all have ended; False when the time is over before that."""
        deadline = time.monotonic() + limit_s
        while any(running.process.poll() is None for running in ending):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_S / 5)
        return True

    def _find(self, name: str) -> _Running:
        running = self._running.get(name)
        if running is None:
            raise LocalError(f"no part is called {name!r}; there are: {', '.join(self._running)}")
        return running

    def _exit(self, running: _Running, code: int) -> Exit:
        log = self.log(running.part.name)
        return Exit(running.part.name, code, log, tail(log))

    def _too_slow(self, part: Part) -> str:
        log = self.log(part.name)
        return f"{part.name} was not ready after {part.ready_s:g} s; the end of {log}:\n{tail(log)}"


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, at most 16 KiB; an empty text when there is none."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
