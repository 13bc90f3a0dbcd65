"""What pods wait for before they end: the very scripts that run in them."""

import asyncio
import runpy
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from epp.sim.gateway.envoy import EnvoySettings
from tests.fakes.gateway import gateway
from tests.fakes.metrics_port import MetricsPort, page, serving
from tests.fakes.upstreams import Conversation, RawUpstream
from tests.fakes.waiting import until
from tests.manifests.rendered import ROOT
from tests.timing import scaled

ENGINE = ROOT / "engines" / "drain" / "drain.py"
ENVOY = ROOT / "envoy" / "drain.sh"
IDLE = page(num_requests_running="0.0", num_requests_waiting="0.0", kv_cache_usage_perc="0.0")
RECORDED = Path(__file__).parents[1] / "data" / "vllm-0.32.0"

busy = runpy.run_path(str(ENGINE))["busy"]


@pytest.mark.parametrize(
    ("text", "is_busy"),
    [
        ("", False),
        (IDLE.decode(), False),
        ("epp_sidecar_in_flight 0.0\n", False),
        ("epp_sidecar_in_flight 2.0\n", True),
        ('epp_sidecar_in_flight{rank="1"} 1\n', True),
        (page(num_requests_running=1).decode(), True),
        (page(num_requests_waiting=1).decode(), True),
        (page(kv_cache_usage_perc=0.0001).decode(), True),
        (IDLE.decode() + 'vllm:num_requests_running{engine="1",model_name="m"} 1.0\n', True),
        ("# HELP vllm:num_requests_running 3 of them\nvllm:num_requests_running_total 3\n", False),
    ],
)
def test_work_is_seen_on_a_page(text: str, is_busy: bool) -> None:
    assert busy(text) is is_busy


def test_pages_of_real_engines_are_read() -> None:
    """Recorded after all was done, and while a prompt waited for somebody to pull it."""
    pages = {file.name: file.read_text() for file in RECORDED.glob("metrics_*.txt")}
    assert pages
    for name, text in pages.items():
        assert busy(text) == (name.startswith("metrics_P_after")), name


@asynccontextmanager
async def draining(sidecar: str, engine: str, *words: str) -> AsyncIterator[float]:
    """The hook at these pages, from start to end; gives when it began, and ends with it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, ENGINE, "--sidecar", sidecar, "--engine", engine),
        *("--pause", "0.02", *words),
    )
    try:
        yield time.monotonic()
        async with asyncio.timeout(scaled(20)):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def _pages() -> AsyncIterator[tuple[MetricsPort, MetricsPort]]:
    sidecar, engine = MetricsPort(b"epp_sidecar_in_flight 0.0\n"), MetricsPort(IDLE)
    async with serving(sidecar), serving(engine):
        yield sidecar, engine


@pytest.mark.parametrize("at", ["sidecar", "engine"])
async def test_an_engine_is_kept_while_anybody_needs_it(at: str) -> None:
    async with _pages() as (sidecar, engine):
        one = {"sidecar": sidecar, "engine": engine}[at]
        idle, work = (
            one.text,
            {
                "sidecar": b"epp_sidecar_in_flight 1.0\n",
                "engine": page(kv_cache_usage_perc=0.2),
            }[at],
        )
        one.text = work
        async with draining(sidecar.url, engine.url, "--least", "0", "--limit", "60"):
            await until(lambda: one.requests >= 10, within_s=10)
            seen, one.text = one.requests, idle
        assert one.requests >= seen + 2


@pytest.mark.parametrize("mode", ["page", "hang", "error"])
async def test_the_sidecar_is_told_first_that_nothing_new_may_come(mode: str) -> None:
    """It answers when all is over, or after its grace: the hook waits by a limit of its own."""
    async with _pages() as (sidecar, engine):
        sidecar.mode = mode
        async with draining(sidecar.url, engine.url, "--least", "0", "--limit", "60"):
            pass
        assert sidecar.paths == ["/drain", "/metrics", "/metrics"]


async def test_an_idle_engine_is_kept_until_gateways_have_noticed() -> None:
    async with _pages() as (sidecar, engine):
        async with draining(sidecar.url, engine.url, "--least", "1", "--limit", "60") as began:
            pass
        assert time.monotonic() - began >= 1


async def test_nothing_is_waited_for_longer_than_the_limit_or_where_nobody_answers() -> None:
    async with _pages() as (sidecar, engine):
        sidecar.text = b"epp_sidecar_in_flight 1.0\n"
        async with draining(sidecar.url, engine.url, "--least", "0", "--limit", "0.5"):
            pass
        asked = sidecar.requests
        sidecar.mode = engine.mode = "error"
        async with draining(sidecar.url, engine.url, "--least", "0", "--limit", "600"):
            pass
        assert asked >= 2


async def test_envoy_is_kept_until_its_answers_have_ended(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def slow(talk: Conversation) -> None:
        await talk.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        await talk.chunk(b"first")
        await release.wait()
        await talk.chunk(b"last")
        await talk.chunk(b"")

    async with RawUpstream(slow).running() as upstream:
        settings = EnvoySettings(
            listen_port=0,
            admin_port=0,
            ext_proc_port=1,
            endpoints=[f"127.0.0.1:{upstream.port}"],
            shape="none",
        )
        async with gateway(tmp_path, settings) as envoy, aiohttp.ClientSession() as session:
            async with session.get(f"{envoy.url}/v1/models") as answer:
                assert await answer.content.readexactly(5) == b"first"
                hook = await asyncio.create_subprocess_exec(
                    "bash", ENVOY, str(envoy.admin_port), "120", "0"
                )
                await asyncio.sleep(2.5)  # it looks each second
                assert hook.returncode is None
                release.set()
                assert await answer.content.readexactly(4) == b"last"
            async with asyncio.timeout(scaled(20)):
                assert await hook.wait() == 0


async def test_the_hook_ends_where_there_is_no_envoy_any_more() -> None:
    hook = await asyncio.create_subprocess_exec(
        "bash", ENVOY, "1", "120", stderr=asyncio.subprocess.DEVNULL
    )
    async with asyncio.timeout(scaled(20)):
        assert await hook.wait() == 0
