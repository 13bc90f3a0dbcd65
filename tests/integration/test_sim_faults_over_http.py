"""What a client of a simulated engine sees when a fault is on, and what the admin routes show."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from epp.sim.serving.server import EngineServer
from tests.fakes.engines import eventually, quick_settings, running_engine

STREAM = {"prompt": "hello there", "max_tokens": 10, "stream": True}


@pytest.fixture
async def engine() -> AsyncIterator[EngineServer]:
    async with running_engine() as server:
        yield server


@pytest.fixture
async def http(engine: EngineServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


async def set_faults(http: aiohttp.ClientSession, **faults: Any) -> None:
    async with http.post("/admin/faults", json=faults) as response:
        assert response.status == 200, await response.text()


async def status_of(http: aiohttp.ClientSession, **more: Any) -> int:
    body = {"prompt": "hello there", "max_tokens": 2, **more}
    async with http.post("/v1/completions", json=body) as response:
        await response.read()
        return response.status


async def read_events(response: aiohttp.ClientResponse, got: list[bytes]) -> None:
    """Read server-sent events until the connection breaks."""
    while True:
        got.append(await response.content.readuntil(b"\n\n"))


async def test_faults_are_shown_replaced_and_healed(http: aiohttp.ClientSession) -> None:
    await set_faults(http, status=503, latency_s=0.001)
    async with http.get("/admin/faults") as response:
        shown = await response.json()
    assert (shown["status"], shown["latency_s"], shown["hang"]) == (503, 0.001, False)
    assert await status_of(http) == 503
    await set_faults(http)
    assert await status_of(http) == 200


@pytest.mark.parametrize("body", [b"{", b'{"status": 200}', b'{"nonsense": 1}', b"[]"])
async def test_faults_that_make_no_sense_change_nothing(
    http: aiohttp.ClientSession, body: bytes
) -> None:
    await set_faults(http, status=503)
    async with http.post("/admin/faults", data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "BadRequestError"
    assert await status_of(http) == 503


async def test_a_status_hits_so_many_requests(http: aiohttp.ClientSession) -> None:
    await set_faults(http, status=429, status_count=2)
    assert [await status_of(http) for _ in range(3)] == [429, 429, 200]


async def test_latency_comes_before_the_headers(http: aiohttp.ClientSession) -> None:
    await set_faults(http, latency_s=0.3)
    started = time.monotonic()
    async with http.post("/v1/completions", json=STREAM) as response:
        assert time.monotonic() - started >= 0.3
        await response.read()


async def test_a_hang_never_answers_and_ends_with_the_client(
    engine: EngineServer, http: aiohttp.ClientSession
) -> None:
    await set_faults(http, hang=True)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(status_of(http), 0.2)
    await eventually(lambda: engine.traffic.left == 1)
    await set_faults(http)
    assert await status_of(http) == 200


async def test_a_stream_hangs_after_so_many_events(
    engine: EngineServer, http: aiohttp.ClientSession
) -> None:
    await set_faults(http, hang_after_chunks=3)
    async with http.post("/v1/completions", json=STREAM) as response:
        for _ in range(3):
            assert (await response.content.readuntil(b"\n\n")).startswith(b"data: {")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.readuntil(b"\n\n"), 0.2)


async def test_a_stream_is_reset_after_so_many_events(
    engine: EngineServer, http: aiohttp.ClientSession
) -> None:
    await set_faults(http, reset_after_chunks=3)
    got: list[bytes] = []
    async with http.post("/v1/completions", json=STREAM) as response:
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
            await read_events(response, got)
    assert [event.startswith(b"data: {") for event in got] == [True] * 3
    assert engine.traffic.cut == 1
    assert engine.driver.engine.running == 0


async def test_a_reset_after_nothing_comes_before_the_headers(
    http: aiohttp.ClientSession,
) -> None:
    await set_faults(http, reset_after_chunks=0)
    with pytest.raises(aiohttp.ClientOSError, match="reset"):
        await status_of(http)


async def test_a_whole_answer_is_cut_in_half(http: aiohttp.ClientSession) -> None:
    await set_faults(http, reset_after_chunks=1)
    async with http.post("/v1/completions", json={"prompt": "hello"}) as response:
        assert response.status == 200
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
            await response.read()


async def test_health_answers_what_it_is_told(http: aiohttp.ClientSession) -> None:
    await set_faults(http, health_status=503)
    async with http.get("/health") as response:
        assert response.status == 503
    assert await status_of(http) == 200


async def test_one_prompt_can_be_evicted(http: aiohttp.ClientSession) -> None:
    prompt = "a word or two " * 20
    await status_of(http, prompt=prompt)
    async with http.post("/admin/evict", json={"prompt": "something else " * 20}) as response:
        assert await response.json() == {"evicted": 0}
    async with http.post("/admin/evict", json={"prompt": prompt}) as response:
        assert (await response.json())["evicted"] > 0


@pytest.mark.parametrize("body", [{}, {"all": True, "prompt": "a"}, {"everything": 1}, {"all": 1}])
async def test_what_to_evict_must_be_said(http: aiohttp.ClientSession, body: Any) -> None:
    async with http.post("/admin/evict", json=body) as response:
        assert response.status == 400


async def test_the_state_counts_what_was_served(http: aiohttp.ClientSession) -> None:
    await status_of(http)
    await status_of(http, max_tokens=0)
    for path in ("/a", "/b"):
        async with http.get(path):
            pass
    async with http.get("/admin/state") as response:
        state = await response.json()
    assert state["requests"]["/v1/completions"] == {"200": 1, "400": 1}
    assert state["requests"]["other"] == {"404": 2}
    assert (state["running"], state["waiting"], state["lives"]) == (0, 0, 1)
    assert state["blocks"]["total"] == 2048


async def test_a_crash_ends_the_process() -> None:
    crashes: list[int] = []
    async with (
        EngineServer(quick_settings(), crash=crashes.append) as engine,
        aiohttp.ClientSession(engine.url) as http,
        http.post("/admin/crash") as response,
    ):
        await response.read()
    assert crashes == [70]


async def test_beyond_loopback_nobody_can_break_the_engine() -> None:
    # Its crash must not end the test run, should it be reachable after all.
    async with (
        EngineServer(quick_settings(host="0.0.0.0"), crash=lambda _: None) as engine,
        aiohttp.ClientSession(f"http://127.0.0.1:{engine.port}") as http,
    ):
        for path in ("/admin/crash", "/admin/faults", "/admin/restart", "/reset_prefix_cache"):
            async with http.post(path, json={}) as response:
                assert response.status == 404
        assert await status_of(http) == 200
