"""Every connector between real sidecars and simulated engines of its kind.

The engines catch what a plan must avoid: KV that was asked for under another request's name is
another prompt's, and the answer is then wrong.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from epp.bodies.sharing import Api
from epp.protocol import KV_SOURCE
from sidecar.connectors import CONNECTORS, Connector
from sidecar.transfer.redaction import NAME as PARAMS
from tests.fakes.split_pool import (
    CHAT,
    COMPLETIONS,
    SplitPool,
    Station,
    prompt,
    split_pool,
    text_of,
)
from tests.fakes.waiting import until
from tests.timing import scaled

NAME = PARAMS.encode()
MEETING: tuple[Connector, ...] = ("sglang", "mooncake")


def ask(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"prompt": prompt(name), "max_tokens": 8, **more}


@asynccontextmanager
async def pool_of(
    connector: Connector, directory: Path, engines: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[SplitPool]:
    # No pull is meant to fail here, however busy the machine is.
    kind: dict[str, Any] = {"kv_connector": connector, "handshake_s": 30.0, **(engines or {})}
    if connector == "shared-storage":
        kind["kv_storage"] = directory / "storage"
        kind["kv_storage"].mkdir()
    async with split_pool(directory, engines=kind, connector=connector, **settings) as pool:
        yield pool


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("connector", CONNECTORS)
async def test_a_split_request_is_answered_as_by_one_engine(
    connector: Connector, stream: bool, path: str, tmp_path: Path
) -> None:
    body: dict[str, Any] = {"max_tokens": 8, "stream": stream}
    body |= (
        {"prompt": prompt("a")}
        if path == COMPLETIONS
        else {"messages": [{"role": "user", "content": prompt("a")}]}
    )
    async with pool_of(connector, tmp_path) as pool:
        status, got = await pool.post(body, path)
        assert (status, text_of(got)) == (200, text_of(await pool.alone(body, path)))
        assert computed_by(pool, 0) > 0
        assert computed_by(pool, 1) == 0, "the decode engine computed the prompt itself"
        await pool.decode.counted({("answered", "split"): 1})


OTHER_APIS: dict[Api, dict[str, Any]] = {
    Api.RESPONSES: {"input": prompt("a"), "max_output_tokens": 8},
    Api.MESSAGES: {"messages": [{"role": "user", "content": prompt("a")}], "max_tokens": 8},
    Api.GENERATE: {"token_ids": list(range(1, 90)), "sampling_params": {"max_tokens": 8}},
}


@pytest.mark.parametrize("connector", CONNECTORS)
async def test_a_split_works_in_every_api(connector: Connector, tmp_path: Path) -> None:
    async with pool_of(connector, tmp_path) as pool:
        for api, asked in OTHER_APIS.items():
            for stream in (True, False):
                # a salt of its own: neither engine has any of it
                body = {**asked, "stream": stream, "cache_salt": f"{api}{stream}"}
                status, got = await pool.post(body, api)
                assert (status, text_of(got)) == (200, text_of(await pool.alone(body, api)))
                assert text_of(got)
        assert computed_by(pool, 1) == 0, "the decode engine computed a prompt itself"
        await pool.decode.counted({("answered", "split"): 6})


def in_use(station: Station) -> bool:
    """Whether its engine keeps blocks for anybody."""
    return bool(station.sim.driver.engine.running) or len(station.pins) > 0


def computed_by(pool: SplitPool, station: int) -> int:
    """Prompt tokens that an engine computed itself."""
    return pool.stations[station].sim.driver.engine.counters.computed_prompt_tokens


@pytest.mark.parametrize("connector", CONNECTORS)
async def test_many_at_once_get_their_own_kv(connector: Connector, tmp_path: Path) -> None:
    """One name for two requests would hand the KV of one to the other."""
    names = [f"r{number}-" for number in range(12)]
    async with pool_of(connector, tmp_path) as pool:
        got = await asyncio.gather(*(pool.post(ask(name)) for name in names))
        for name, (status, answer) in zip(names, got, strict=True):
            assert (status, text_of(answer)) == (200, text_of(await pool.alone(ask(name))))
        await pool.decode.counted({("answered", "split"): len(names)})


@pytest.mark.parametrize("connector", MEETING)
async def test_a_prefill_that_fails_ends_the_decode_leg_that_waits_for_it(
    connector: Connector, tmp_path: Path
) -> None:
    """The engine would wait for `meet_s`, half a minute."""
    async with pool_of(connector, tmp_path, on_prefill_failure="fail") as pool:
        pool.prefill.fault(status=503)
        async with asyncio.timeout(scaled(8)):
            status, _ = await pool.post(ask())
        assert status == 503
        assert len(pool.decode.bodies) == 1
        await pool.decode.counted({("passed", "split"): 1})


async def test_where_engines_can_a_failed_meeting_is_computed_by_the_decode_engine(
    tmp_path: Path,
) -> None:
    async with pool_of("mooncake", tmp_path) as pool:
        pool.prefill.fault(status=503)
        status, got = await pool.post(ask())
        assert (status, text_of(got)) == (200, text_of(await pool.alone(ask())))
        assert [NAME in body for body in pool.decode.bodies] == [True, False]
        await pool.decode.counted({("answered", "prefill-status"): 1})


@pytest.mark.parametrize("connector", MEETING)
async def test_a_client_that_leaves_while_engines_meet_leaves_no_block_behind(
    connector: Connector, tmp_path: Path
) -> None:
    slow = {"prefill_tokens_per_s": 150.0}
    async with pool_of(connector, tmp_path, engines=slow) as pool:
        async with asyncio.TaskGroup() as tg:
            leaving = tg.create_task(pool.post(ask()))
            await until(lambda: pool.prefill.bodies and pool.decode.bodies)
            leaving.cancel()
        await pool.decode.ended("client-gone")
        await until(lambda: not any(map(in_use, pool.stations)))
        assert [len(station.pins) for station in pool.stations] == [0, 0]


async def test_a_restarted_prefill_engine_is_met_under_its_new_name(tmp_path: Path) -> None:
    async with pool_of("mooncake", tmp_path) as pool:
        for name in ("a", "b"):
            status, got = await pool.post(ask(name))
            assert (status, text_of(got)) == (200, text_of(await pool.alone(ask(name))))
            pool.prefill.sim.restart()
            await until(lambda: pool.prefill.sidecar.engine.ready)
        await pool.decode.counted({("answered", "split"): 2})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_with_a_threshold_the_decode_engine_is_asked_first(
    stream: bool, tmp_path: Path
) -> None:
    body = ask(stream=stream, cache_hit_threshold=0.5)
    async with pool_of("shared-storage", tmp_path) as pool:
        for _ in range(2):
            status, got = await pool.post(body)
            assert (status, text_of(got)) == (200, text_of(await pool.alone(ask(stream=stream))))
        assert len(pool.prefill.bodies) == 1
        thresholds = [json.loads(one)["cache_hit_threshold"] for one in pool.decode.bodies]
        assert thresholds == [0.5, 0, 0.5]
        await pool.decode.counted({("answered", "split"): 1, ("answered", "warm"): 1})


async def test_kv_of_a_third_pod_is_offered_to_whoever_computes_the_prompt(
    tmp_path: Path,
) -> None:
    async with split_pool(
        tmp_path, prefills=2, engines={"kv_connector": "offloading"}, connector="offloading"
    ) as pool:
        prefill, source = pool.stations[:2]
        for targets, computing in ((prefill.address, prefill), ("", pool.decode)):
            body = ask(f"to {targets}")
            status, got = await pool.post(body, targets=targets, **{KV_SOURCE: source.address})
            assert (status, text_of(got)) == (200, text_of(await pool.alone(body)))
            told = json.loads(computing.bodies[-1])[PARAMS]["remote_kv_source"]
            assert told["remote_host"] == "127.0.0.1"
            assert told["kv_request_id"].startswith("leg-")
        assert b"remote_kv_source" not in pool.decode.bodies[0]
        # nobody fetches from itself, nor from who is no member
        for named, targets in (
            (prefill.address, prefill.address),
            (pool.decode.address, ""),
            ("10.9.9.9:80", ""),
        ):
            assert (await pool.post(ask(named), targets=targets, **{KV_SOURCE: named}))[0] == 200
        assert sum(b"remote_kv_source" in one for one in pool.decode.bodies) == 1
        assert sum(b"remote_kv_source" in one for one in prefill.bodies) == 1


async def test_what_the_source_has_cached_is_not_computed_again(tmp_path: Path) -> None:
    """The source is the first station, whose port all sidecars of the pool are told."""
    async with pool_of("offloading", tmp_path) as pool:
        source, counters = pool.prefill, pool.decode.sim.driver.engine.counters
        url = source.url + COMPLETIONS
        async with pool.session.post(url, json=ask("known", max_tokens=1)) as response:
            assert response.status == 200
        for name, known in (("known", True), ("new", False)):
            before = counters.computed_prompt_tokens
            status, got = await pool.post(ask(name), targets="", **{KV_SOURCE: source.address})
            assert (status, text_of(got)) == (200, text_of(await pool.alone(ask(name))))
            assert (counters.computed_prompt_tokens - before <= 16) == known
        assert counters.fetched_blocks > 0


async def test_a_source_that_is_gone_costs_nothing_but_the_prompt(tmp_path: Path) -> None:
    async with pool_of("offloading", tmp_path, p2p_port=1) as pool:
        named = {KV_SOURCE: pool.prefill.address}
        status, got = await pool.post(ask(), targets="", **named)
        assert (status, text_of(got)) == (200, text_of(await pool.alone(ask())))


async def test_an_engine_in_decode_mode_is_never_asked_to_compute_a_prompt(tmp_path: Path) -> None:
    async with pool_of("sglang", tmp_path) as pool:
        pool.prefill.fault(status=503)
        assert (await pool.post(ask()))[0] == 503
        assert all(b"bootstrap_room" in body for body in pool.decode.bodies)


async def test_a_client_cannot_choose_where_engines_meet(tmp_path: Path) -> None:
    room: dict[str, Any] = {"bootstrap_host": "10.9.9.9", "bootstrap_port": 1, "bootstrap_room": 7}
    async with pool_of("sglang", tmp_path) as pool:
        status, _ = await pool.post(ask(**room))
        assert status == 200
        for body in (pool.prefill.bodies[-1], pool.decode.bodies[-1]):
            assert json.loads(body)["bootstrap_host"] == "127.0.0.1"
        status, _ = await pool.post(ask(n=2, **room))
        assert status == 400  # without a room, the engine says so
        assert b"bootstrap" not in pool.decode.bodies[-1]
