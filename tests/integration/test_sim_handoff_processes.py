"""Two simulated engines as processes of their own: handoff, death and restart of one of them."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from tests.fakes.engines import engine_process, prefill_body
from tests.timing import scaled

BODY: dict[str, Any] = {"prompt": "one two three four five " * 20, "max_tokens": 6}


async def post(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with http.post(url + "/v1/completions", json=body) as response:
        return response.status, await response.json()


async def test_processes_hand_over_and_outlive_each_other() -> None:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        first, prefill = await stack.enter_async_context(engine_process(kv_role="both"))
        _, decode = await stack.enter_async_context(engine_process(kv_role="both", handshake_s=0.1))
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
            engine_process(kv_role="both", side_channel_port=params["remote_port"])
        )
        status, _ = await post(http, decode, {**BODY, "kv_transfer_params": params})
        assert status == 500
        _, answer = await post(http, prefill, prefill_body(BODY))
        params = answer["kv_transfer_params"]
        status, answer = await post(http, decode, {**BODY, "kv_transfer_params": params})
        assert (status, answer["choices"][0]["text"]) == (200, text)
        assert again.returncode is None


async def test_a_process_ends_when_its_engine_dies_of_a_request() -> None:
    async with (
        engine_process(kv_role="both", exit_when_dead=True) as (process, url),
        aiohttp.ClientSession() as h,
    ):
        fatal = {**BODY, "kv_transfer_params": {"do_remote_prefill": True}}
        status, _ = await post(h, url, fatal)
        assert status == 500
        assert await asyncio.wait_for(process.wait(), scaled(5)) == 1
