"""A sidecar in a process of its own, as its image starts it."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import epp
from tests.timing import scaled


@asynccontextmanager
async def sidecar_process(*flags: str) -> AsyncIterator[tuple[Process, int, int]]:
    """The process, its port, and the port of its pages; all on loopback."""
    argv = ["sidecar", "--pool-name", "default", "--host", "127.0.0.1"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from epp.cli import main; main()"),
        *(*argv, "--port", "0", "--metrics-port", "0", *flags),
        stderr=asyncio.subprocess.PIPE,
        # The same code as the test's, wherever that stands.
        env={**os.environ, "PYTHONPATH": str(Path(epp.__file__).parents[1])},
    )
    assert process.stderr is not None
    log = process.stderr
    async with asyncio.TaskGroup() as tg:
        try:
            async with asyncio.timeout(scaled(30)):
                while b"sidecar listens" not in (line := await log.readline()):
                    assert line, "the sidecar ended at once"
            said = json.loads(line)
            reading = tg.create_task(_read(log))
            yield process, said["port"], said["metrics_port"]
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        await reading


async def _read(log: asyncio.StreamReader) -> None:
    """Its log must not fill the pipe."""
    while await log.read(1 << 16):
        pass
