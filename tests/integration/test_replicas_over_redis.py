"""Two pickers over one Redis: each counts the other's requests, and a dead one's no longer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from epp.state.sums import LEASE_S
from tests.fakes import extproc_client
from tests.fakes.extproc_messages import request_body, request_headers
from tests.fakes.metrics_port import MetricsPort, page, serving
from tests.fakes.picker_process import PickerProcess, picker_process
from tests.fakes.redis_server import running
from tests.timing import scaled

OPEN = 300
BODY = b'{"model": "m", "prompt": "hello"}'


@asynccontextmanager
async def two_pickers(tmp_path: Path) -> AsyncIterator[tuple[PickerProcess, PickerProcess]]:
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(running())
        engine = await stack.enter_async_context(serving(MetricsPort(page(num_requests_waiting=0))))
        flags = ("--store", "redis", "--redis-url", redis.url)
        address = engine.url.split("/")[2]
        pickers = [
            await stack.enter_async_context(picker_process(tmp_path / name, [address], *flags))
            for name in ("one", "two")
        ]
        yield pickers[0], pickers[1]


async def reserved(picker: PickerProcess) -> tuple[int, int]:
    """What it has reserved itself, and what it heard of others."""
    url = f"http://127.0.0.1:{picker.ports['admin']}/debug/state"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        (one,) = json.loads(await answer.text())["endpoints"]
    return one["reserved_here"], one["reserved_elsewhere"]


async def until_reserved(picker: PickerProcess, wanted: tuple[int, int], within_s: float) -> None:
    async with asyncio.timeout(scaled(within_s)):
        while await reserved(picker) != wanted:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.02)


async def test_the_requests_of_a_killed_replica_are_nobodys_load_after_its_lease(
    tmp_path: Path,
) -> None:
    async with two_pickers(tmp_path) as (one, two), AsyncExitStack() as stack:
        channel = await stack.enter_async_context(extproc_client.channel(one.ports["grpc"]))
        calls = [extproc_client.call(channel) for _ in range(OPEN)]
        for call in calls:
            await call.send(request_headers(), request_body(BODY, end=True))
        for call in calls:
            assert await call.reply() is not None
        await until_reserved(two, (0, OPEN), 10)
        assert await reserved(one) == (OPEN, 0)
        one.process.kill()
        await one.process.wait()
        await until_reserved(two, (0, 0), LEASE_S + 1.0)


async def test_two_replicas_know_how_many_they_are(tmp_path: Path) -> None:
    async with two_pickers(tmp_path) as (one, two):
        for picker in (one, two):
            await picker.until_metric("epp_replicas", 1.0)
        two.terminate()
        assert await two.ended(20) == 0
        await one.until_metric("epp_replicas", 0.0)
