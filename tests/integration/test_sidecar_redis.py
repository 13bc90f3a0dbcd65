"""A whole sidecar that publishes into a real Redis, which goes away and comes back empty."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from epp.framework import PoolId
from epp.state.blocks import seed_of, token_keys
from epp.state.store.place import read_access
from epp.state.store.redis_reader import RedisReader
from tests.fakes.chains import Follower, new_state, until
from tests.fakes.engines import running_engine
from tests.fakes.redis_server import RedisServer, running
from tests.fakes.sidecars import quick_settings, running_sidecar

POOL = PoolId("default/pool")
PROMPT = list(range(2000, 2400))
KEYS = token_keys(PROMPT, seed_of("sim"))


@asynccontextmanager
async def following(redis: RedisServer, port: int) -> AsyncIterator[Follower]:
    """A fresh replica of the picker, as far as the log goes."""
    state = new_state(POOL, "default/engine-0", port)
    members = [member.id for member in state.endpoints]
    reader = RedisReader(read_access(redis.url), POOL, members=lambda: members)
    follower = Follower(reader, state)
    async with asyncio.TaskGroup() as tg:
        task = tg.create_task(follower.read(reader.streams[0]))
        try:
            yield follower
        finally:
            task.cancel()
    await reader.close()


async def complete(session: aiohttp.ClientSession, port: int) -> int:
    body = json.dumps({"model": "sim", "prompt": PROMPT, "max_tokens": 4})
    url = f"http://127.0.0.1:{port}/v1/completions"
    fields = {"x-epp-decision-id": "d"}
    async with session.post(url, data=body, headers=fields) as response:
        await response.read()
        return response.status


async def test_a_redis_that_lost_everything_hears_everything_again() -> None:
    with running() as redis:
        async with running_engine() as engine, aiohttp.ClientSession() as session:
            settings = quick_settings(
                engine.port, 1, state_url=redis.url, kv_events=engine.kv_events_endpoint
            )
            async with running_sidecar(settings) as sidecar:
                async with following(redis, sidecar.port) as before:
                    await until(lambda: before.state.rung(before.endpoint, 0.0) is not None)
                    await asyncio.sleep(0.3)  # a subscription needs a moment to reach the engine
                    assert await complete(session, sidecar.port) == 200
                    await until(lambda: before.knows(KEYS))
                redis.kill()
                assert await complete(session, sidecar.port) == 200, "requests do not need Redis"
                await asyncio.sleep(0.2)
                redis.start()
                async with following(redis, sidecar.port) as after:
                    await until(lambda: after.knows(KEYS), 15)


async def test_a_restarted_sidecar_goes_on_from_what_the_last_one_knew() -> None:
    with running() as redis:
        async with running_engine() as engine, aiohttp.ClientSession() as session:
            settings = quick_settings(
                engine.port,
                1,
                state_url=redis.url,
                kv_events=engine.kv_events_endpoint,
                snapshot_s=0.2,
            )
            async with running_sidecar(settings) as sidecar:
                port = sidecar.port
                async with following(redis, port) as replica:
                    await asyncio.sleep(0.3)
                    assert await complete(session, port) == 200
                    await until(lambda: replica.knows(KEYS))
                await asyncio.sleep(0.3)
            async with (
                running_sidecar(settings.model_copy(update={"port": port})) as sidecar,
                following(redis, port) as replica,
            ):
                await asyncio.sleep(0.3)
                engine.port  # noqa: B018
                other = [token + 10_000 for token in PROMPT]
                body = json.dumps({"model": "sim", "prompt": other, "max_tokens": 4})
                url = f"http://127.0.0.1:{port}/v1/completions"
                async with session.post(url, data=body) as response:
                    assert response.status == 200
                await until(lambda: replica.knows(KEYS))
