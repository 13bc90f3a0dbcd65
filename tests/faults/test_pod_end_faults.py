"""Field faults of pods that end, seen from inside of the pod."""

import asyncio
import sys
from pathlib import Path

from tests.fakes.engines import running_engine
from tests.fakes.sidecars import LogReader, quick_settings, running_sidecar
from tests.fakes.waiting import until
from tests.timing import scaled

HOOK = Path(__file__).parents[2] / "manifests" / "engines" / "drain" / "drain.py"


async def test_F04_a_pod_that_ends_says_so_itself_should_the_api_server_be_away() -> None:
    """The engine's preStop hook has its sidecar say "not ready" before it waits for anything.

    Protected by the first request of manifests/engines/drain/drain.py, to /drain.
    """
    async with running_engine() as engine, LogReader().running() as log:
        settings = quick_settings(engine.port, log.server.port, settle_s=0.1)
        async with running_sidecar(settings) as sidecar:
            await until(lambda: log.view.status is not None and log.view.status.ready)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, HOOK, "--least", "0", "--engine", f"{engine.url}/metrics"),
                *("--sidecar", f"http://127.0.0.1:{sidecar.metrics_port}/metrics"),
            )
            async with asyncio.timeout(scaled(20)):
                assert await process.wait() == 0
            assert log.view.status is not None
            assert not log.view.status.ready
