"""`epp top` shows a running picker's state, as text and as JSON."""

import asyncio
import json
import sys
from pathlib import Path

from tests.fakes.metrics_port import MetricsPort, page, serving
from tests.fakes.picker_process import picker_process
from tests.timing import scaled


async def epp(*words: str) -> tuple[int, str, str]:
    """Exit status and what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from epp.cli import main; main()",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(scaled(30)):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_top_shows_a_pickers_endpoints_once(tmp_path: Path) -> None:
    async with (
        serving(MetricsPort(page(num_requests_waiting=3))) as engine,
        picker_process(tmp_path, [engine.url.split("/")[2]]) as picker,
    ):
        admin = f"127.0.0.1:{picker.ports['admin']}"
        status, out, _ = await epp("top", "--once", "--admin", admin)
        assert status == 0
        assert out.startswith("pool default   mode normal   1 of 1 ready")
        status, out, _ = await epp("top", "--once", "--json", "--admin", admin)
        assert status == 0
        told = json.loads(out)
        assert [one["ready"] for one in told["endpoints"]] == [True]
        assert told["store_connected"] is True


async def test_top_says_when_nobody_is_there() -> None:
    status, out, err = await epp("top", "--once", "--admin", "127.0.0.1:9")
    assert status == 2
    assert out == ""
    assert "does not answer" in err
