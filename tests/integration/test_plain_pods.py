"""`epp serve` before engines without sidecars: all replicas know exactly what each holds."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from epp.sim.serving.server import EngineServer
from epp.state.leases import LEASE_S
from tests.fakes.engines import running_engine
from tests.fakes.picker_process import cluster_process
from tests.fakes.plain_pool import OTHER, PROMPT, REPLAY, ask, whole
from tests.fakes.probed import endpoints_file, matches, post, until_matches
from tests.fakes.redis_server import running

THREE = "A third one that came while nobody was there to write down what became of it all. " * 20


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


def prompted(prompt: str) -> dict[str, str]:
    return {"model": "sim", "prompt": prompt}


async def test_replicas_know_plain_engines_exactly_and_outlive_the_one_that_writes(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(running())
        a, b = await stack.enter_async_context(engines(2))
        await ask(a, PROMPT)
        flags = ("--endpoints-file", str(endpoints_file(tmp_path, (a, b))), "--tokenizer", "engine")
        flags += ("--store", "redis", "--redis-url", redis.url)
        made = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            process = cluster_process(tmp_path / name, *flags)
            made.append(await stack.enter_async_context(process))
        await ask(b, OTHER)
        for picker in made:
            await until_matches(picker, prompted(PROMPT), (a, cached(PROMPT)), (b, 0))
            await until_matches(picker, prompted(OTHER), (a, 0), (b, cached(OTHER)))
        held = [await picker.metric("epp_lease_held") for picker in made]
        assert sorted(held) == [0.0, 1.0]
        writer, other = made[held.index(1.0)], made[held.index(0.0)]
        assert await writer.metric('epp_plain_members{state="written"}') == 2

        writer.process.kill()
        await writer.process.wait()
        await ask(a, THREE)
        await post(f"{b.url}/admin/evict", {"all": True})
        await other.until_metric("epp_lease_held", 1.0, within_s=2 * LEASE_S)
        await until_matches(other, prompted(PROMPT), (a, cached(PROMPT)), (b, 0))
        await until_matches(other, prompted(THREE), (a, cached(THREE)), (b, 0))
        await until_matches(other, prompted(OTHER), (a, 0), (b, 0))
        assert await other.metric('epp_state_events_total{event="blocks-implausible"}') == 0

        redis.freeze()
        await other.until_metric("epp_lease_held", 0.0, within_s=2 * LEASE_S)
        assert set(await matches(other, prompted(PROMPT))) == {
            f"127.0.0.1:{one.port}" for one in (a, b)
        }
        redis.thaw()
        await other.until_metric("epp_lease_held", 1.0, within_s=2 * LEASE_S)
        await until_matches(other, prompted(THREE), (a, cached(THREE)), (b, 0))

        other.terminate()
        assert await other.ended(20) == 0
        key = "epp:{default:0}:elected:plain-writer"
        assert redis.command("EXISTS", key) == ":0\r\n", "who ends gives the lease back"


@pytest.mark.parametrize("workers", [1, 2])
async def test_who_hosts_the_store_writes_without_an_election(tmp_path: Path, workers: int) -> None:
    async with AsyncExitStack() as stack:
        (a,) = await stack.enter_async_context(engines(1))
        await ask(a, PROMPT)
        flags = ("--endpoints-file", str(endpoints_file(tmp_path, (a,))), "--tokenizer", "engine")
        process = cluster_process(tmp_path, *flags, "--workers", str(workers))
        picker = await stack.enter_async_context(process)
        for _ in range(3 * workers):  # connections are dealt out among workers
            await until_matches(picker, prompted(PROMPT), (a, cached(PROMPT)))
        assert await picker.metric("epp_lease_held") == 1
        assert await picker.metric("epp_plain_members") == 1
