"""A whole sidecar that publishes into a real Redis, which goes away and comes back empty."""

import asyncio
import json

import aiohttp

from epp.framework import PoolId
from epp.state.blocks import seed_of, token_keys
from epp.state.store.redis import RedisReader
from tests.fakes.engines import running_engine
from tests.fakes.redis_server import running
from tests.fakes.sidecars import View, quick_settings, running_sidecar
from tests.fakes.waiting import until

PROMPT = list(range(2000, 2400))
KEYS = set(token_keys(PROMPT, seed_of("sim")))


async def follow(url: str, view: View) -> None:
    """Apply what a fresh reader of the log gets."""
    reader = RedisReader(url, PoolId("default/pool"))
    try:
        async for batch in reader.records():
            for record in batch.records:
                view.apply(record)
    finally:
        await reader.close()


async def complete(session: aiohttp.ClientSession, port: int) -> int:
    body = json.dumps({"model": "sim", "prompt": PROMPT, "max_tokens": 4})
    url = f"http://127.0.0.1:{port}/v1/completions"
    fields = {"x-epp-decision-id": "d"}
    async with session.post(url, data=body, headers=fields) as response:
        await response.read()
        return response.status


async def test_a_redis_that_lost_everything_hears_the_full_state_again() -> None:
    with running() as redis:
        async with running_engine() as engine, aiohttp.ClientSession() as session:
            settings = quick_settings(
                engine.port, 1, state_url=redis.url, kv_events=engine.kv_events_endpoint
            )
            async with running_sidecar(settings) as sidecar, asyncio.TaskGroup() as tg:
                before, after = View(), View()
                task = tg.create_task(follow(redis.url, before))
                await until(lambda: before.status is not None and before.status.ready)
                await asyncio.sleep(0.3)  # a subscription needs a moment to reach the engine
                assert await complete(session, sidecar.port) == 200
                await until(lambda: before.keys >= KEYS and before.done)
                task.cancel()
                redis.kill()
                assert await complete(session, sidecar.port) == 200, "requests do not need Redis"
                await asyncio.sleep(0.2)
                redis.start()
                task = tg.create_task(follow(redis.url, after))
                await until(lambda: after.keys >= KEYS and after.done, within_s=15)
                task.cancel()
