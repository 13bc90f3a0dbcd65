"""A picker before simulated engines without sidecars, asked what it would count on them."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from epp.sim.serving.server import EngineServer
from tests.fakes.picker_process import PickerProcess
from tests.fakes.plain_pool import member_of
from tests.timing import scaled

COMPLETIONS = "/v1/completions"
Matches = dict[str, tuple[int, str]]


def endpoints_file(directory: Path, engines: Sequence[EngineServer]) -> Path:
    """A file for `--endpoints-file` that names them and where they tell their events."""
    entries = []
    for engine in engines:
        events = member_of(engine).events
        entries.append(
            {
                "name": engine.settings.name,
                "address": "127.0.0.1",
                "port": engine.port,
                "sidecar": False,
                "kvEventsPort": events.events,
                "kvReplayPort": events.replay,
            }
        )
    file = directory / "endpoints.json"
    file.write_text(json.dumps({"endpoints": entries}))
    return file


async def post(url: str, body: object) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def matches(
    picker: PickerProcess, body: Mapping[str, object], path: str = COMPLETIONS
) -> Matches:
    """Cached tokens that a decision would count on each engine, and by whose word."""
    url = f"http://127.0.0.1:{picker.ports['admin']}/v1/routing/probe?path={path}"
    table = (await post(url, body))["decision"]["table"]
    return {row["address"]: (row["match"]["tokens"], row["match"]["source"]) for row in table}


async def until_matches(
    picker: PickerProcess,
    body: Mapping[str, object],
    *wanted: tuple[EngineServer, int],
    path: str = COMPLETIONS,
) -> None:
    """Wait until these are what is known, all of it by the engines' word."""
    expected = {
        f"127.0.0.1:{engine.port}": (tokens, "precise" if tokens else "none")
        for engine, tokens in wanted
    }
    found: Matches = {}
    try:
        async with asyncio.timeout(scaled(10)):
            while (found := await matches(picker, body, path)) != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{found} is not {expected}") from None
