"""A whole sidecar with a simulated engine, real ZeroMQ and a real state port."""

import asyncio
import json
import signal
import socket
import sys
import time

import aiohttp
import pytest

from epp.framework import EndpointId, PoolId
from epp.state.blocks import seed_of, token_keys
from epp.state.records import Outcome
from tests.fakes import relays
from tests.fakes.engines import running_engine
from tests.fakes.pods import sidecar_process
from tests.fakes.sidecars import LogReader, quick_settings, running_sidecar
from tests.fakes.upstreams import Conversation, RawUpstream, answer
from tests.fakes.waiting import until
from tests.timing import scaled

pytestmark = pytest.mark.usefixtures("each_relay")

PROMPT = list(range(1000, 1400))
ABSENT = ("--name", "n", "--engine-url", "http://127.0.0.1:1")
"""Flags of a sidecar before an engine that never comes."""
DECISION = {"x-epp-decision-id": "d-1", "x-epp-predicted-cached-tokens": "128"}


def completion(prompt: list[int], **more: object) -> bytes:
    return json.dumps({"model": "sim", "prompt": prompt, "max_tokens": 4, **more}).encode()


async def post(session: aiohttp.ClientSession, port: int, data: bytes, **headers: str) -> bytes:
    url = f"http://127.0.0.1:{port}/v1/completions"
    async with session.post(url, data=data, headers=headers) as response:
        assert response.status == 200
        return await response.read()


async def wait_ready(session: aiohttp.ClientSession, port: int, status: int = 200) -> None:
    async with asyncio.timeout(10):
        while True:
            async with session.get(f"http://127.0.0.1:{port}/health") as response:
                if response.status == status:
                    return
            await asyncio.sleep(0.01)


async def test_a_request_shows_up_in_the_log_as_blocks_first_token_and_done() -> None:
    async with running_engine() as engine, LogReader().running() as log:
        settings = quick_settings(engine.port, log.server.port, kv_events=engine.kv_events_endpoint)
        async with running_sidecar(settings) as sidecar, aiohttp.ClientSession() as session:
            view = await log.until(lambda v: v.status is not None and v.status.ready)
            assert view.incarnation is not None
            assert view.incarnation.endpoint == EndpointId(
                PoolId("default/pool"), "default/engine-0", sidecar.port
            )
            assert abs(view.incarnation.start_ms - engine.start_ns / 1e6) <= 1
            assert view.status is not None
            assert (view.status.report.waiting, view.status.report.total_blocks) == (0, 2048)
            assert not view.status.events, "no event was seen yet"
            await asyncio.sleep(0.3)  # a subscription needs a moment to reach the engine
            await post(session, sidecar.port, completion(PROMPT), **DECISION)
            await post(
                session,
                sidecar.port,
                completion(PROMPT, stream=True, stream_options={"include_usage": True}),
                **{**DECISION, "x-epp-decision-id": "d-2"},
            )
            view = await log.until(lambda v: len(v.done) == 2)
            expected = set(token_keys(PROMPT, seed_of("sim")))
            assert expected <= view.keys
            assert view.status.events if view.status else False
            assert [first.decision_id for first in view.first] == ["d-1", "d-2"]
            cold, warm = view.done
            assert (cold.outcome, cold.status) == (Outcome.OK, 200)
            assert (cold.prompt_tokens, cold.cached_tokens, cold.completion_tokens) == (400, 0, 4)
            assert cold.predicted_cached_tokens == 128
            assert (warm.prompt_tokens, warm.completion_tokens) == (400, 4)
            assert warm.cached_tokens is not None
            assert warm.cached_tokens >= 384
            assert warm.ttft_s is not None
            assert warm.duration_s is not None
            assert 0 < warm.ttft_s <= warm.duration_s


async def test_an_engine_that_restarts_is_a_later_life_with_an_empty_cache() -> None:
    async with running_engine() as engine, LogReader().running() as log:
        settings = quick_settings(engine.port, log.server.port, kv_events=engine.kv_events_endpoint)
        async with running_sidecar(settings) as sidecar, aiohttp.ClientSession() as session:
            await wait_ready(session, sidecar.port)
            await asyncio.sleep(0.3)
            await post(session, sidecar.port, completion(PROMPT))
            first = (await log.until(lambda v: len(v.keys) >= 6)).incarnation
            engine.restart()
            view = await log.until(lambda v: v.incarnation != first)
            assert first is not None
            assert view.incarnation is not None
            assert view.incarnation.start_ms > first.start_ms
            assert view.keys == set()
            await post(session, sidecar.port, completion(PROMPT))
            await log.until(lambda v: set(token_keys(PROMPT, seed_of("sim"))) <= v.keys)


async def test_a_picker_that_restarts_gets_the_full_state_again() -> None:
    async with running_engine() as engine:
        async with LogReader().running() as log:
            port = log.server.port
            settings = quick_settings(engine.port, port, kv_events=engine.kv_events_endpoint)
            stop_after = running_sidecar(settings)
            sidecar = await stop_after.__aenter__()
            async with aiohttp.ClientSession() as session:
                await wait_ready(session, sidecar.port)
                await asyncio.sleep(0.3)
                await post(session, sidecar.port, completion(PROMPT))
            known = set((await log.until(lambda v: len(v.keys) >= 6)).keys)
        async with LogReader(port=port).running() as log:
            view = await log.until(lambda v: v.keys >= known)
            assert view.claims == 1
        await stop_after.__aexit__(None, None, None)


async def test_readiness_follows_an_engine_that_loads_and_dies() -> None:
    async def script(talk: Conversation) -> None:
        status = b"200 OK" if healthy else b"503 Service Unavailable"
        await answer(b"", status=status)(talk)

    healthy = False
    upstream = RawUpstream(script)
    async with LogReader().running() as log:
        async with upstream.running():
            settings = quick_settings(
                upstream.port, log.server.port, health_interval_s=0.05, model="m"
            )
            leave = running_sidecar(settings)
            sidecar = await leave.__aenter__()
            session = aiohttp.ClientSession()
            await wait_ready(session, sidecar.port, 503)
            async with session.get(f"http://127.0.0.1:{sidecar.metrics_port}/healthz") as response:
                assert response.status == 200
            healthy = True
            await wait_ready(session, sidecar.port)
            await log.until(lambda v: v.status is not None and v.status.ready)
        died = time.monotonic()
        await log.until(lambda v: v.status is not None and not v.status.ready)
        assert time.monotonic() - died < scaled(0.25)
        await wait_ready(session, sidecar.port, 503)
        await session.close()
        await leave.__aexit__(None, None, None)


async def test_a_killed_engine_is_noticed_within_a_blink_though_health_is_asked_rarely() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    engine = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import asyncio; from epp.sim.serving.server import run, EngineSettings;"
        f" asyncio.run(run(EngineSettings(port={port})))",
    )
    try:
        async with LogReader().running() as log:
            settings = quick_settings(port, log.server.port, health_interval_s=0.5)
            async with running_sidecar(settings):
                await log.until(lambda v: v.status is not None and v.status.ready, within_s=30)
                await asyncio.sleep(0.6)
                engine.send_signal(signal.SIGKILL)
                killed = time.monotonic()
                await log.until(lambda v: v.status is not None and not v.status.ready)
                assert time.monotonic() - killed < scaled(0.2)
    finally:
        if engine.returncode is None:
            engine.kill()
        await engine.wait()


async def test_answers_in_flight_end_before_the_sidecar_does() -> None:
    async with running_engine(decode_step_s=0.02) as engine, LogReader().running() as log:
        settings = quick_settings(engine.port, log.server.port)
        leave = running_sidecar(settings)
        sidecar = await leave.__aenter__()
        async with aiohttp.ClientSession() as session:
            await wait_ready(session, sidecar.port)
            await log.until(lambda v: v.status is not None and v.status.ready)
            body = completion(PROMPT, stream=True, max_tokens=40)
            async with asyncio.TaskGroup() as tg:
                streams = [
                    tg.create_task(post(session, sidecar.port, body, **DECISION)) for _ in range(8)
                ]
                await until(lambda: sidecar.relay.in_flight == 8)
                leaving = tg.create_task(leave.__aexit__(None, None, None))
                await log.until(lambda v: v.status is not None and not v.status.ready)
                async with session.get(f"http://127.0.0.1:{sidecar.port}/health") as response:
                    assert response.status == 503
                assert not leaving.done()
            assert all(stream.result().endswith(b"data: [DONE]\n\n") for stream in streams)
            view = await log.until(lambda v: len(v.done) == 8)
            assert {done.outcome for done in view.done} == {Outcome.OK}


async def test_answers_that_outlast_the_grace_period_are_cut() -> None:
    async def script(talk: Conversation) -> None:
        if talk.request.line.startswith(b"GET"):
            await answer(b"")(talk)
            return
        await talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await talk.chunk(b"1")
        await talk.reader.readexactly(1)

    upstream = RawUpstream(script)
    async with upstream.running(), LogReader().running() as log:
        settings = quick_settings(upstream.port, log.server.port, grace_s=0.2, model="m")
        leave = running_sidecar(settings)
        sidecar = await leave.__aenter__()
        async with aiohttp.ClientSession() as session:
            await wait_ready(session, sidecar.port)
            async with session.post(f"http://127.0.0.1:{sidecar.port}/", data=b"{}") as response:
                await response.content.readany()
                await leave.__aexit__(None, None, None)
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.content.readany()


async def test_the_metrics_page_counts_what_passed() -> None:
    async with running_engine() as engine, LogReader().running() as log:
        settings = quick_settings(engine.port, log.server.port)
        async with running_sidecar(settings) as sidecar, aiohttp.ClientSession() as session:
            await wait_ready(session, sidecar.port)
            await log.until(lambda v: v.records > 0)
            await until(lambda: sidecar.engine.served == {"sim"})
            await post(session, sidecar.port, completion(PROMPT), **DECISION)
            await post(session, sidecar.port, completion(PROMPT, stream=True))
            foreign = json.dumps({"model": "d-2", "prompt": "hi"}).encode()
            url = f"http://127.0.0.1:{sidecar.port}/v1/completions"
            async with session.post(url, data=foreign) as response:
                assert response.status == 404
            async with session.get(f"http://127.0.0.1:{sidecar.port}/v1/models") as response:
                assert response.status == 200
            async with session.get(f"http://127.0.0.1:{sidecar.metrics_port}/metrics") as response:
                page = await response.text()
    base = 'fairness_id="",model_name="sim",priority="",target_model_name="sim"'
    assert 'epp_sidecar_requests_total{outcome="ok"} 3.0' in page
    assert f"llm_d_epp_request_input_tokens_sum{{{base}}} 800.0" in page
    assert f"llm_d_epp_request_output_tokens_sum{{{base}}} 8.0" in page
    assert f"llm_d_epp_request_duration_seconds_count{{{base}}} 2.0" in page
    assert f"llm_d_epp_request_running{{{base}}} 0.0" in page
    streamed = base.replace("target", 'streaming="true",target')
    assert f"llm_d_epp_request_ttft_seconds_count{{{streamed}}} 1.0" in page
    assert f"llm_d_epp_request_streaming_tpot_seconds_count{{{base}}} 1.0" in page
    assert f"llm_d_epp_request_size_bytes_count{{{base.replace('sim', 'other')}}} 1.0" in page
    assert "epp_sidecar_engine_ready 1.0" in page
    assert "epp_sidecar_publishing 1.0" in page
    assert "d-1" not in page
    assert "d-2" not in page, "no label is a client's own word"


async def test_requests_pass_while_the_log_is_away() -> None:
    async with running_engine() as engine:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = quick_settings(engine.port, port)
        async with running_sidecar(settings) as sidecar, aiohttp.ClientSession() as session:
            await wait_ready(session, sidecar.port)
            for _ in range(20):
                await post(session, sidecar.port, completion(PROMPT), **DECISION)
            async with LogReader(port=port).running() as log:
                view = await log.until(lambda v: len(v.done) == 20)
                assert len(view.first) == 20


async def test_sigterm_ends_the_process_with_status_zero() -> None:
    async with (
        sidecar_process(*ABSENT, "--relay", relays.kind, "--settle", "0") as (process, _, _),
        asyncio.timeout(scaled(10)),
    ):
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_a_background_task_that_fails_is_counted_and_requests_pass() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        async with running_engine() as engine, LogReader().running() as log:
            settings = quick_settings(
                engine.port, log.server.port, kv_events=endpoint, kv_events_bind=True
            )
            async with running_sidecar(settings) as sidecar, aiohttp.ClientSession() as session:
                await wait_ready(session, sidecar.port)
                await post(session, sidecar.port, completion(PROMPT), **DECISION)
                view = await log.until(lambda v: len(v.done) == 1)
                assert view.status is not None
                assert not view.status.events
                failures = sidecar.metrics.task_failures.labels("events")
                assert failures._value.get() >= 1


async def test_a_second_signal_ends_it_at_once() -> None:
    flags = ("--relay", relays.kind, "--settle", "60", "--grace", "60")
    async with sidecar_process(*ABSENT, *flags) as (process, _, _), asyncio.timeout(scaled(10)):
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
