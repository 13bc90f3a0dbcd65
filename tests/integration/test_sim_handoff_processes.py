"""Two simulated engines as processes of their own: handoff, death and restart of one of them."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from tests.fakes.engines import prefill_body
from tests.timing import scaled

PROGRAM = """
import asyncio, json, sys
from epp.sim.serving.server import EngineServer, EngineSettings, run

def ready(server: EngineServer) -> None:
    print(server.url, flush=True)

asyncio.run(run(EngineSettings(**json.loads(sys.argv[1])), ready))
"""
BODY: dict[str, Any] = {"prompt": "one two three four five " * 20, "max_tokens": 6}


@asynccontextmanager
async def engine_process(**settings: Any) -> AsyncIterator[tuple[Process, str]]:
    given = json.dumps({"port": 0, "kv_role": "both", "grace_s": 0.1, **settings})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", PROGRAM, given, stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(scaled(20)):
            line = await process.stdout.readline()
        yield process, line.decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def post(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with http.post(url + "/v1/completions", json=body) as response:
        return response.status, await response.json()


async def test_processes_hand_over_and_outlive_each_other() -> None:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        first, prefill = await stack.enter_async_context(engine_process())
        _, decode = await stack.enter_async_context(engine_process(handshake_s=0.1))
        _, alone = await post(http, prefill, BODY)
        text = alone["choices"][0]["text"]
        _, answer = await post(http, prefill, prefill_body(BODY))
        params = answer["kv_transfer_params"]
        status, answer = await post(http, decode, {**BODY, "kv_transfer_params": params})
        assert (status, answer["choices"][0]["text"]) == (200, text)
        # Prefill is killed after its answer; the decode engine knew it.
        _, answer = await post(http, prefill, prefill_body(BODY))
        params = answer["kv_transfer_params"]
        first.kill()
        await first.wait()
        status, answer = await post(http, decode, {**BODY, "kv_transfer_params": params})
        assert (status, answer["error"]["message"]) == (500, "Internal server error")
        # Another process listens at the same address: a new life, which the old offer is not for.
        again, prefill = await stack.enter_async_context(
            engine_process(side_channel_port=params["remote_port"])
        )
        status, _ = await post(http, decode, {**BODY, "kv_transfer_params": params})
        assert status == 500
        _, answer = await post(http, prefill, prefill_body(BODY))
        params = answer["kv_transfer_params"]
        status, answer = await post(http, decode, {**BODY, "kv_transfer_params": params})
        assert (status, answer["choices"][0]["text"]) == (200, text)
        assert again.returncode is None


async def test_a_process_ends_when_its_engine_dies_of_a_request() -> None:
    async with engine_process(exit_when_dead=True) as (process, url), aiohttp.ClientSession() as h:
        fatal = {**BODY, "kv_transfer_params": {"do_remote_prefill": True}}
        status, _ = await post(h, url, fatal)
        assert status == 500
        assert await asyncio.wait_for(process.wait(), scaled(5)) == 1
