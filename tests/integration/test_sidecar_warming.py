"""Engines of a pair shake hands before the first prompt, where that is asked for."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.transfer.warming import PAUSE_S
from tests.fakes.split_pool import SplitPool, prompt, split_pool
from tests.fakes.upstreams import RawUpstream, answer
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("each_relay")

JSON = b"Content-Type: application/json\r\n"
ASK: dict[str, Any] = {"prompt": prompt("a"), "max_tokens": 4}


@asynccontextmanager
async def pool_of(
    directory: Path, roles: tuple[str, ...] = ("prefill",), **settings: Any
) -> AsyncIterator[SplitPool]:
    """Every sidecar warms its pairs, once all have their roles."""
    settings = {"prefills": len(roles), "warm_pairs": True, **settings}
    async with split_pool(directory, **settings) as pool:
        entries = json.loads(pool.file.read_text())["endpoints"]
        for entry, role in zip(entries, (*roles, "decode"), strict=True):
            entry["labels"] = {"llm-d.ai/role": role}
        pool.file.write_text(json.dumps({"endpoints": entries}))
        yield pool


def met(pool: SplitPool, outcome: str = "met") -> float:
    return pool.decode.metric("pairs_warmed_total", outcome=outcome)


async def test_a_prefill_pod_is_met_once_and_nothing_stays_pinned(tmp_path: Path) -> None:
    async with pool_of(tmp_path) as pool:
        await until(lambda: met(pool) == 1)
        assert pool.decode.sim.driver.engine.counters.pulls == 1
        assert pool.decode.metric("pairs_warm") == 1
        await asyncio.sleep(2 * PAUSE_S)
        assert (len(pool.prefill.bodies), len(pool.decode.bodies)) == (1, 1)
        assert (await pool.post(ASK))[0] == 200
        await pool.decode.counted({("answered", "split"): 1})


async def test_who_decodes_meets_who_prefills(tmp_path: Path) -> None:
    roles = ("decode", "encode", "encode-prefill", "prefill")
    async with pool_of(tmp_path, roles) as pool:
        decoding = (pool.stations[0], pool.decode)
        await until(lambda: all(one.metric("pairs_warm") == 2 for one in decoding))
        assert [len(one.bodies) for one in pool.stations] == [2, 0, 2, 2, 2]
        assert [one.metric("pairs_warm") for one in pool.stations] == [2, 0, 0, 0, 2]


async def test_a_pod_whose_leg_failed_is_met_again(tmp_path: Path) -> None:
    async with pool_of(tmp_path) as pool:
        await until(lambda: met(pool) == 1)
        pool.prefill.fault(status=503)
        assert (await pool.post(ASK))[0] == 200
        pool.prefill.fault()
        await until(lambda: met(pool) + met(pool, "status") >= 2)


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (answer(b"no", status=b"503 No", fields=JSON), "status"),
        (answer(b'{"choices":[]}', fields=JSON), "no-params"),
    ],
)
async def test_what_fails_is_counted_and_not_repeated_at_once(
    script: Any, outcome: str, tmp_path: Path
) -> None:
    async with pool_of(tmp_path, upstreams={0: RawUpstream(script)}) as pool:
        await until(lambda: met(pool, outcome) == 1)
        await asyncio.sleep(2 * PAUSE_S)
        assert met(pool, outcome) == 1
        assert pool.decode.metric("pairs_warm") == 0
        assert pool.decode.bodies == []


async def test_without_the_flag_nobody_is_asked(tmp_path: Path) -> None:
    async with pool_of(tmp_path, warm_pairs=False) as pool:
        await asyncio.sleep(2 * PAUSE_S)
        assert pool.prefill.bodies == pool.decode.bodies == []
