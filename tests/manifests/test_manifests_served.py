"""From rendered manifests to a routed request: what pods would run, as processes on loopback."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from tests.manifests.loopback import served
from tests.manifests.rendered import rendered
from tests.timing import scaled

SPLIT = 'epp_sidecar_handoff_total{outcome="answered",reason="split"}'
LONG = "Once upon a time there was a request that nobody had computed before. " * 200


async def _ask(session: aiohttp.ClientSession, url: str, prompt: str) -> dict[str, Any]:
    body = {"model": "sim", "prompt": prompt, "max_tokens": 4}
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def test_a_long_prompt_is_computed_on_the_prefill_pod_and_answered_by_the_other(
    tmp_path: Path,
) -> None:
    async with served(rendered("standalone"), tmp_path) as pool, aiohttp.ClientSession() as session:
        splits = partial(pool.metric, "decode", SPLIT)
        tries, prompt, first = 0, "", {}
        async with asyncio.timeout(scaled(20)):
            while not await splits():  # a decision that comes late splits nothing
                tries += 1
                prompt = f"{tries}. {LONG}"
                first = await _ask(session, pool.gateway.url, prompt)
        # What both engines hold is told by their sidecars, with the users and keys of the pool.
        await pool.until(partial(pool.picker.metric, "epp_index_blocks"), 40)
        again = await _ask(session, pool.gateway.url, prompt)
        assert again["choices"][0]["text"] == first["choices"][0]["text"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 3000
        before = await splits()
        pool.pods.delete("prefill")  # marked: only its node may end it
        await pool.picker.until_metric("llm_d_epp_ready_endpoints", 1)
        await _ask(session, pool.gateway.url, f"Another. {LONG}")
        assert await splits() == before
