"""A pod ends in order: its sidecar takes nothing new, its answers end, its engine, then itself."""

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from sidecar.pages import Pages
from tests.fakes.engines import running_engine
from tests.fakes.extproc_client import call, channel
from tests.fakes.extproc_messages import request_headers, set_in
from tests.fakes.picker_process import PickerProcess, cluster_process
from tests.fakes.pods import sidecar_process
from tests.fakes.sidecars import LogReader, quick_settings, running_sidecar
from tests.fakes.split_pool import prompt, split_pool
from tests.fakes.upstreams import Conversation, RawUpstream
from tests.fakes.waiting import until
from tests.integration.test_sidecar_ranks import two_free_ports
from tests.integration.test_sim_handoff_processes import engine_process
from tests.timing import scaled

STREAMS = 5
ASK = json.dumps({"prompt": prompt("d"), "max_tokens": 60, "stream": True}).encode()


async def picked(picker: PickerProcess) -> int:
    """The port of the pod that a request goes to now."""
    async with channel(picker.ports["grpc"]) as to:
        stream = call(to)
        await stream.send(request_headers({":path": "/x", ":method": "GET"}, end=True))
        reply = await stream.reply()
        assert reply is not None
        fields = set_in(reply.request_headers.response.header_mutation)
        await stream.done_writing()
    return int(fields["x-gateway-destination-endpoint"].rpartition(":")[2])


async def test_a_pod_ends_without_a_cut_answer_and_gets_nothing_new(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.json"
    file.write_text('{"endpoints": []}')
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        picker = await enter(cluster_process(tmp_path, "--endpoints-file", str(file)))
        state = f"tcp://127.0.0.1:{picker.ports['state']}"
        pods = []
        for name in ("leaves", "stays"):
            engine, url = await enter(engine_process(decode_step_s=0.02))
            flags = ("--name", f"default/{name}", "--engine-url", url, "--state-url", state)
            sidecar, port, pages = await enter(sidecar_process(*flags, "--settle", "0.5"))
            pods.append((engine, sidecar, port, pages))
        entries = [
            {"name": name, "address": "127.0.0.1", "port": pod[2]}
            for name, pod in zip(("leaves", "stays"), pods, strict=True)
        ]
        file.write_text(json.dumps({"endpoints": entries}))
        await picker.until_metric("llm_d_epp_ready_endpoints", 2)
        engine, sidecar, port, pages = pods[0]
        http = await enter(aiohttp.ClientSession())
        tg = await enter(asyncio.TaskGroup())

        async def stream() -> bytes:
            url = f"http://127.0.0.1:{port}/v1/completions"
            async with http.post(url, data=ASK) as response:
                begun.append(response.status)
                answer = await response.read()
            ended.append("answer")
            return answer

        async def hook() -> bytes:
            async with http.get(f"http://127.0.0.1:{pages}/drain") as response:
                said = await response.read()
            await asyncio.sleep(0.1)  # whatever came with it is read
            ended.append("hook")
            return said

        begun: list[int] = []
        ended: list[str] = []
        streams = [tg.create_task(stream()) for _ in range(STREAMS)]
        await until(lambda: begun == [200] * STREAMS)

        hooked = tg.create_task(hook())
        await picker.until_metric("llm_d_epp_ready_endpoints", 1, within_s=1)
        assert {await picked(picker) for _ in range(20)} == {pods[1][2]}
        answers = [await one for one in streams]
        assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
        async with asyncio.timeout(scaled(5)):
            assert await hooked == b"drained\n"
        assert ended == ["answer"] * STREAMS + ["hook"], "the engine still computed"

        engine.send_signal(signal.SIGTERM)
        assert await engine.wait() is not None
        sidecar.send_signal(signal.SIGTERM)
        async with asyncio.timeout(scaled(3)):
            assert await sidecar.wait() == 0
        assert await picker.metric("llm_d_epp_ready_endpoints") == 1


async def test_a_prefill_pod_waits_until_its_blocks_were_pulled_or_their_lease_is_over(
    tmp_path: Path,
) -> None:
    async def never(talk: Conversation) -> None:
        await talk.reader.read()  # a decode engine that pulls nothing

    upstream = RawUpstream(never)
    engines = {"lease_s": 1.5}
    async with split_pool(tmp_path, upstreams={-1: upstream}, engines=engines, drain_s=0.2) as pool:
        pool.means_harm = True
        asked = {"prompt": prompt("k"), "max_tokens": 4, "stream": True}
        async with asyncio.TaskGroup() as tg:
            client = tg.create_task(pool.post(asked))
            await until(lambda: len(pool.prefill.pins) == 1)
            pages = f"http://127.0.0.1:{pool.prefill.sidecar.metrics_port}"
            async with pool.session.get(f"{pages}/drain") as response:
                assert await response.read() == b"drained\n"
            assert len(pool.prefill.pins) == 0, "the engine ended with blocks that are pulled"
            assert pool.prefill.pins.counters.expired == 1
            client.cancel()


async def test_a_grace_that_is_too_short_is_told() -> None:
    async with running_engine(decode_step_s=0.5) as engine, LogReader().running() as log:
        settings = quick_settings(engine.port, log.server.port, grace_s=0.1)
        async with running_sidecar(settings) as sidecar, aiohttp.ClientSession() as http:
            await until(lambda: sidecar.engine.ready)
            url = f"http://127.0.0.1:{sidecar.port}/v1/completions"
            async with http.post(url, data=ASK):
                drain = f"http://127.0.0.1:{sidecar.metrics_port}/drain"
                async with http.get(drain) as response:
                    assert (response.status, await response.read()) == (503, b"1 are left\n")


async def test_a_hook_that_gives_up_waiting_ends_no_drain() -> None:
    async with running_engine() as engine, LogReader().running() as log:
        settings = quick_settings(engine.port, log.server.port, settle_s=0.3)
        async with running_sidecar(settings) as sidecar, aiohttp.ClientSession() as http:
            await until(lambda: sidecar.engine.ready)
            url = f"http://127.0.0.1:{sidecar.metrics_port}/drain"
            with pytest.raises(TimeoutError):
                await http.get(url, timeout=aiohttp.ClientTimeout(total=0.05))
            async with http.get(url) as response:
                assert response.status == 200
            assert sidecar.reporter.draining


async def test_a_pod_of_several_ranks_ends_as_a_whole() -> None:
    port, pages = two_free_ports(), two_free_ports()
    async with (
        LogReader().running() as log,
        running_engine(name="rank0", port=port),
        running_engine(name="rank1", port=port + 1),
        running_sidecar(quick_settings(port, log.server.port, dp_size=2, metrics_port=pages)),
        aiohttp.ClientSession() as http,
    ):
        await until(lambda: ready(log) == [True, True])
        async with http.get(f"http://127.0.0.1:{pages + 1}/drain") as response:
            assert response.status == 200
        await until(lambda: ready(log) == [False, False])


def ready(log: LogReader) -> list[bool]:
    return [view.status is not None and view.status.ready for view in log.views.values()]


@pytest.mark.parametrize(
    ("peer", "status"),
    [("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("10.0.0.7", 403), ("", 403)],
)
async def test_only_whoever_is_in_the_pod_may_end_it(peer: str, status: int) -> None:
    ended: list[None] = []

    async def drain() -> int:
        ended.append(None)
        return 0

    said = await answered(drain, peer)
    assert (said, len(ended)) == (status, int(status == 200))


async def answered(drain: Callable[..., object], peer: str) -> int:
    """The status with which the page answers to this peer."""
    pages = Pages(None, lambda: 0.0, drain)  # type: ignore[arg-type]
    status, _ = await pages.drained(peer)
    return status
