"""Requests to a rendered pool, as a client sends them to its gateway."""

import asyncio
from typing import Any

import aiohttp

from tests.manifests.loopback import Pool
from tests.timing import scaled

SPLIT = 'epp_sidecar_handoff_total{outcome="answered",reason="split"}'
LONG = "Once upon a time there was a request that nobody had computed before. " * 200


async def asked(
    session: aiohttp.ClientSession, url: str, prompt: str, **headers: str
) -> dict[str, Any]:
    """The answer to a completion of four tokens."""
    body = {"model": "sim", "prompt": prompt, "max_tokens": 4}
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def split(pool: Pool, session: aiohttp.ClientSession) -> tuple[str, dict[str, Any]]:
    """A long prompt that was computed on the prefill pod, and its answer."""
    tries, prompt, first = 0, "", {}
    async with asyncio.timeout(scaled(20)):
        while not await pool.metric("decode", SPLIT):  # a decision that comes late splits nothing
            tries += 1
            prompt = f"{tries}. {LONG}"
            first = await asked(session, pool.gateway.url, prompt)
    return prompt, first
