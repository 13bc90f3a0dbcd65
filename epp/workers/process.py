"""One worker as its host sees it: started, watched, started again, and asked to leave."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import structlog

from epp.errors import EppError

START_S = 60.0
"""A worker that does not serve after so long is started again."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
STEADY_S = 60.0
"""Who served for so long is started again at once."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pages:
    """Ports on loopback where a worker that serves shows its pages."""

    metrics: int
    admin: int


class Worker:
    """`keep` until cancelled; `leave` first, so that it ends well. `pages`: None while it does not
    serve."""

    def __init__(self, number: int, order: Callable[[], str]) -> None:
        """`order`: what to tell each new process of it, see `child.Order`."""
        self.number = number
        self.pages: Pages | None = None
        self.restarts = 0
        self.started = asyncio.Event()
        """It served at least once."""
        self.failed: int | None = None
        """Exit status of a first process that never served: the settings cannot work."""
        self._order = order
        self._process: asyncio.subprocess.Process | None = None
        self._leaving = False

    async def keep(self) -> None:
        """Run the process; start it again when it ends, unless it never served."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_S
        while not self._leaving:
            began = loop.time()
            status = await self._life()
            if self._leaving:
                return
            if not self.started.is_set():
                self.failed = status
                self.started.set()
                return
            log.error("worker ended", worker=self.number, status=status, again_in_s=pause)
            steady = loop.time() - began > STEADY_S
            pause = FIRST_PAUSE_S if steady else min(LONGEST_PAUSE_S, 2 * pause)
            await asyncio.sleep(pause)
            self.restarts += 1

    def leave(self) -> None:
        """Let it drain and end."""
        self._leaving = True
        self.pages = None
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _life(self) -> int:
        """One process, from its start to its end; its exit status."""
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "epp.workers.child",
                str(write_end),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(write_end,),
            )
        except OSError as error:
            os.close(read_end)
            raise EppError(f"cannot start a worker: {error}") from error
        finally:
            os.close(write_end)
        self._process = process
        try:
            with os.fdopen(read_end, "rb") as pipe:
                await self._until_it_serves(process, pipe)
                return await process.wait()
        finally:
            self.pages = None
            self.kill()

    async def _until_it_serves(self, process: asyncio.subprocess.Process, pipe: BinaryIO) -> None:
        assert process.stdin is not None
        with suppress(ConnectionError):  # its exit status says more
            process.stdin.write(self._order().encode())
            await process.stdin.drain()  # it stays open: its end tells that we are gone
        loop = asyncio.get_running_loop()
        said = asyncio.StreamReader()
        line, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(said), pipe)
        ports = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                ports = await said.readline()
        line.close()
        if not ports:  # it ended, or takes too long
            self.kill()
        elif not self._leaving:
            self.pages = Pages(**json.loads(ports))
            self.started.set()
