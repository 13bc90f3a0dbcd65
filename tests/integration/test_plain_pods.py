"""`epp serve` before engines without sidecars: all replicas know exactly what each holds."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from epp.sim.serving.server import EngineServer
from epp.state.leases import LEASE_S
from tests.fakes.engines import running_engine
from tests.fakes.picker_process import PickerProcess, cluster_process
from tests.fakes.plain_pool import OTHER, PROMPT, REPLAY, ask, member_of, whole
from tests.fakes.redis_server import running
from tests.timing import scaled

THREE = "A third one that came while nobody was there to write down what became of it all. " * 20
Matches = dict[str, tuple[int, str]]


def cached(prompt: str) -> int:
    """Tokens in own blocks that an engine holds of a prompt: all but its last engine block."""
    return 64 * whole(prompt)


@asynccontextmanager
async def engines(count: int) -> AsyncIterator[list[EngineServer]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                running_engine(name=f"e{number}", hash_seed=number, **REPLAY)
            )
            for number in range(count)
        ]


def file_of(directory: Path, made: Sequence[EngineServer]) -> Path:
    entries = []
    for engine in made:
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


async def post(url: str, body: object) -> dict[str, object]:
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, object] = await answer.json()
        return found


async def matches(picker: PickerProcess, prompt: str) -> Matches:
    """Cached tokens that a decision would count on each engine, and by whose word."""
    url = f"http://127.0.0.1:{picker.ports['admin']}/v1/routing/probe?path=/v1/completions"
    told = await post(url, {"model": "sim", "prompt": prompt})
    table = told["decision"]["table"]  # type: ignore[index]
    return {row["address"]: (row["match"]["tokens"], row["match"]["source"]) for row in table}


async def until_matches(picker: PickerProcess, prompt: str, *wanted: tuple[EngineServer, int]):
    """Wait until these are what is known, all of it by the engines' word."""
    expected = {
        f"127.0.0.1:{engine.port}": (tokens, "precise" if tokens else "none")
        for engine, tokens in wanted
    }
    found: Matches = {}
    try:
        async with asyncio.timeout(scaled(10)):
            while (found := await matches(picker, prompt)) != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{found} is not {expected}") from None


async def test_replicas_know_plain_engines_exactly_and_outlive_the_one_that_writes(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(running())
        a, b = await stack.enter_async_context(engines(2))
        await ask(a, PROMPT)
        flags = ("--endpoints-file", str(file_of(tmp_path, (a, b))), "--tokenizer", "engine")
        flags += ("--store", "redis", "--redis-url", redis.url)
        made = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            process = cluster_process(tmp_path / name, *flags)
            made.append(await stack.enter_async_context(process))
        await ask(b, OTHER)
        for picker in made:
            await until_matches(picker, PROMPT, (a, cached(PROMPT)), (b, 0))
            await until_matches(picker, OTHER, (a, 0), (b, cached(OTHER)))
        held = [await picker.metric("epp_lease_held") for picker in made]
        assert sorted(held) == [0.0, 1.0]
        writer, other = made[held.index(1.0)], made[held.index(0.0)]
        assert await writer.metric('epp_plain_members{state="written"}') == 2

        writer.process.kill()
        await writer.process.wait()
        await ask(a, THREE)
        await post(f"{b.url}/admin/evict", {"all": True})
        await other.until_metric("epp_lease_held", 1.0, within_s=2 * LEASE_S)
        await until_matches(other, PROMPT, (a, cached(PROMPT)), (b, 0))
        await until_matches(other, THREE, (a, cached(THREE)), (b, 0))
        await until_matches(other, OTHER, (a, 0), (b, 0))
        assert await other.metric('epp_state_events_total{event="blocks-implausible"}') == 0

        redis.freeze()
        await other.until_metric("epp_lease_held", 0.0, within_s=2 * LEASE_S)
        assert set(await matches(other, PROMPT)) == {f"127.0.0.1:{one.port}" for one in (a, b)}
        redis.thaw()
        await other.until_metric("epp_lease_held", 1.0, within_s=2 * LEASE_S)
        await until_matches(other, THREE, (a, cached(THREE)), (b, 0))

        other.terminate()
        assert await other.ended(20) == 0
        key = "epp:{default:0}:elected:plain-writer"
        assert redis.command("EXISTS", key) == ":0\r\n", "who ends gives the lease back"


@pytest.mark.parametrize("workers", [1, 2])
async def test_who_hosts_the_store_writes_without_an_election(tmp_path: Path, workers: int) -> None:
    async with AsyncExitStack() as stack:
        (a,) = await stack.enter_async_context(engines(1))
        await ask(a, PROMPT)
        flags = ("--endpoints-file", str(file_of(tmp_path, (a,))), "--tokenizer", "engine")
        process = cluster_process(tmp_path, *flags, "--workers", str(workers))
        picker = await stack.enter_async_context(process)
        for _ in range(3 * workers):  # connections are dealt out among workers
            await until_matches(picker, PROMPT, (a, cached(PROMPT)))
        assert await picker.metric("epp_lease_held") == 1
        assert await picker.metric("epp_plain_members") == 1
