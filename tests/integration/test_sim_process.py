"""A simulated engine as a process of its own: start, idle, end."""

import asyncio
import os
import signal

import aiohttp
import pytest

from tests.fakes.engines import engine_process
from tests.timing import scaled


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly(number: signal.Signals) -> None:
    async with engine_process() as (process, url):
        async with aiohttp.ClientSession(url) as http, http.get("/health") as response:
            assert response.status == 200
        process.send_signal(number)
        _, errors = await asyncio.wait_for(process.communicate(), scaled(5))
        assert (process.returncode, errors) == (0, b"")


async def test_running_answers_may_end_within_the_grace() -> None:
    async with engine_process(grace_s=10) as (process, url):
        body = {"prompt": "a", "max_tokens": 50, "stream": True}
        async with (
            aiohttp.ClientSession(url) as http,
            http.post("/v1/completions", json=body) as response,
        ):
            await response.content.readuntil(b"\n\n")
            process.send_signal(signal.SIGTERM)
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        _, errors = await asyncio.wait_for(process.communicate(), scaled(5))
        assert (process.returncode, errors) == (0, b"")


async def test_a_hung_request_does_not_hold_up_the_end() -> None:
    async with engine_process() as (process, url), aiohttp.ClientSession(url) as http:
        async with http.post("/admin/faults", json={"hang_after_chunks": 1}):
            pass
        async with http.post("/v1/completions", json={"prompt": "a", "stream": True}) as response:
            await response.content.readuntil(b"\n\n")
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.wait_for(process.communicate(), scaled(5))
            assert (process.returncode, errors) == (0, b"")


async def test_a_crash_says_goodbye_to_nobody() -> None:
    async with engine_process() as (process, url), aiohttp.ClientSession(url) as http:
        body = {"prompt": "a", "max_tokens": 5000, "stream": True}
        async with http.post("/v1/completions", json=body) as response:
            await response.content.readuntil(b"\n\n")
            with pytest.raises(aiohttp.ClientError):
                await http.post("/admin/crash")
            with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
                await response.read()
        assert await asyncio.wait_for(process.wait(), scaled(5)) == 70


async def test_an_idle_engine_costs_next_to_no_cpu() -> None:
    async with engine_process() as (process, url):
        async with aiohttp.ClientSession(url) as http:
            body = {"prompt": "a", "max_tokens": 5}
            async with http.post("/v1/completions", json=body) as response:
                assert response.status == 200
        before = cpu_seconds(process.pid)
        await asyncio.sleep(1.5)
        assert cpu_seconds(process.pid) - before <= 0.03
