"""`epp serve --workers`: several processes behind one set of ports, with one state."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.fakes import extproc_client
from tests.fakes.extproc_messages import request_body, request_headers
from tests.fakes.metrics_port import MetricsPort, page, serving
from tests.fakes.picker_process import PickerProcess, picker_process
from tests.timing import scaled

BODY = b'{"model": "m", "prompt": "hello"}'


@asynccontextmanager
async def workers(tmp_path: Path, *flags: str) -> AsyncIterator[PickerProcess]:
    """Two workers over one engine without a sidecar."""
    async with (
        serving(MetricsPort(page(num_requests_waiting=0))) as engine,
        picker_process(tmp_path, [engine.url.split("/")[2]], *flags, workers=2) as picker,
    ):
        yield picker


async def get(picker: PickerProcess, path: str, port: str = "admin") -> str:
    url = f"http://127.0.0.1:{picker.ports[port]}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


async def route(picker: PickerProcess) -> bool:
    """One request over a connection of its own; whether it got an endpoint."""
    async with extproc_client.channel(picker.ports["grpc"]) as channel:
        call = extproc_client.call(channel)
        await call.send(request_headers(), request_body(BODY, end=True))
        first = await call.reply()
        await call.done_writing()
        return first is not None and first.HasField("request_headers")


def per_worker(text: str, name: str) -> dict[str, float]:
    found = re.findall(rf'^{name}{{worker="(\d+)".*}} ([0-9.e+]+)$', text, re.MULTILINE)
    sums: dict[str, float] = {}
    for worker, value in found:
        sums[worker] = sums.get(worker, 0.0) + float(value)
    return sums


async def test_all_workers_decide_behind_one_port_and_show_their_numbers_on_one_page(
    tmp_path: Path,
) -> None:
    async with workers(tmp_path) as picker:
        for _ in range(40):
            assert await route(picker)
        text = await get(picker, "/metrics", "metrics")
        decided = per_worker(text, "llm_d_epp_request_total")
        assert set(decided) == {"0", "1"}
        assert sum(decided.values()) == 40
        assert "\nepp_workers 2\n" in text
        assert text.count("# TYPE llm_d_epp_request_total counter") == 1
        decisions = json.loads(await get(picker, "/debug/decisions?limit=1000"))
        assert len(decisions["decisions"]) == 40
        moments = [one["at"] for one in decisions["decisions"]]
        assert moments == sorted(moments, reverse=True)


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = 10) -> None:
    async with asyncio.timeout(scaled(within_s)):
        while not await holds():  # noqa: ASYNC110 - the condition belongs to other processes
            await asyncio.sleep(0.05)


async def hear_each_other(picker: PickerProcess) -> bool:
    heard = per_worker(await get(picker, "/metrics", "metrics"), "epp_replicas")
    return heard == {"0": 1.0, "1": 1.0}


async def reserved(picker: PickerProcess) -> list[tuple[int, int]]:
    """What each worker has reserved itself and heard of the other."""
    states = [json.loads(await get(picker, f"/debug/state?worker={n}")) for n in (0, 1)]
    members = [one for state in states for one in state.get("endpoints", ())]
    return sorted((one["reserved_here"], one["reserved_elsewhere"]) for one in members)


async def test_workers_count_each_others_requests_as_load(tmp_path: Path) -> None:
    async with workers(tmp_path) as picker:
        await until(lambda: hear_each_other(picker))
        async with extproc_client.channel(picker.ports["grpc"]) as channel:
            call = extproc_client.call(channel)  # an answer that does not end
            await call.send(request_headers(), request_body(BODY, end=True))
            assert await call.reply() is not None

            async def both_know() -> bool:
                return await reserved(picker) == [(0, 1), (1, 0)]

            await until(both_know)


async def test_a_switched_mode_holds_for_all_and_for_a_worker_that_is_started_again(
    tmp_path: Path,
) -> None:
    async with workers(tmp_path) as picker:
        url = f"http://127.0.0.1:{picker.ports['admin']}/debug/mode"
        async with aiohttp.ClientSession() as session:
            for mode, status in (("random", 200), ("nonsense", 400)):
                async with session.post(url, json={"mode": mode}) as answer:
                    assert answer.status == status
        for number in (0, 1):
            told = json.loads(await get(picker, f"/debug/mode?worker={number}"))
            assert told["mode"] == "random"
        os.kill(children(picker)[1], signal.SIGKILL)
        await picker.until_metric("epp_worker_restarts_total", 1.0)
        await picker.until_metric("epp_workers", 2.0)
        assert json.loads(await get(picker, "/debug/mode?worker=1"))["mode"] == "random"


async def test_a_worker_that_dies_costs_no_later_request_and_comes_back(tmp_path: Path) -> None:
    async with workers(tmp_path) as picker:
        await until(lambda: hear_each_other(picker))
        os.kill(children(picker)[0], signal.SIGKILL)  # the one that hosts the store
        await picker.until_metric("epp_workers", 1.0)
        for _ in range(10):
            assert await route(picker)
        await picker.until_metric("epp_worker_restarts_total", 1.0)
        await picker.until_metric("epp_workers", 2.0)
        await until(lambda: hear_each_other(picker))


async def test_all_leave_together(tmp_path: Path) -> None:
    async with workers(tmp_path) as picker:
        mine = children(picker)
        picker.terminate()
        assert await picker.ended(20) == 0
        assert not [pid for pid in mine if alive(pid)]


async def test_no_worker_outlives_its_host(tmp_path: Path) -> None:
    async with workers(tmp_path, "--drain-timeout", "1s") as picker:
        mine = children(picker)
        picker.process.kill()

        async def all_gone() -> bool:
            return not any(map(alive, mine))

        await until(all_gone, 20)
    assert len(mine) == 2
    assert not [pid for pid in mine if alive(pid)]


async def test_a_port_that_somebody_has_is_refused(tmp_path: Path) -> None:
    async with workers(tmp_path) as picker:
        taken = str(picker.ports["grpc"])
        with pytest.raises(AssertionError, match="cannot listen for ext_proc"):
            async with workers(tmp_path / "other", "--grpc-port", taken):
                pass


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def children(picker: PickerProcess) -> list[int]:
    """The workers' processes, in the order of their starts."""
    pid = picker.process.pid
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
