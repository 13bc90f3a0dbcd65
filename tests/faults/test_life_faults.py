"""Field faults of a picker's life: how it is left, how much it carries, who may look at it."""

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2

from epp import protocol
from epp.sim.gateway.envoy import EnvoySettings
from epp.sim.gateway.routes import EVERY_PATH
from tests.fakes import extproc_messages as envoy
from tests.fakes.backend import Backend, backend
from tests.fakes.extproc_client import Call, call, channel
from tests.fakes.gateway import Gateway, gateway
from tests.fakes.picker_process import PickerProcess, picker_process
from tests.fakes.redis_server import running
from tests.timing import scaled

MIB = 2**20
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@asynccontextmanager
async def _gateway(
    directory: Path,
    pickers: list[PickerProcess],
    engines: list[Backend],
    *,
    retries: bool = True,
    health_interval_s: float = 0.1,
) -> AsyncIterator[Gateway]:
    """A real Envoy that knows all of these pickers, in full duplex: streams last as answers do."""

    def every_picker(bootstrap: str) -> str:
        config = json.loads(bootstrap)
        (cluster,) = [
            each for each in config["static_resources"]["clusters"] if each["name"] == "picker"
        ]
        endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        first = json.dumps(endpoints[0])
        for picker in pickers[1:]:
            endpoint = json.loads(first)
            where = endpoint["endpoint"]["address"]["socket_address"]
            where["port_value"] = picker.ports["grpc"]
            endpoints.append(endpoint)
        return json.dumps(config)

    settings = EnvoySettings(
        listen_port=0,
        admin_port=0,
        ext_proc_port=pickers[0].ports["grpc"],
        endpoints=[engine.address for engine in engines],
        tls=False,
        shape="full-duplex",
        retries=retries,
        api_paths=EVERY_PATH,
        health_interval_s=health_interval_s,
    )
    async with gateway(directory, settings, edit=every_picker, pickers=len(pickers)) as made:
        yield made


async def _sse(client: aiohttp.ClientSession, events: int) -> bytes:
    async with client.get(f"/sse?n={events}") as response:
        return await response.read()


async def test_A21_a_rollout_under_load_loses_neither_a_request_nor_an_answer(
    tmp_path: Path,
) -> None:
    """Protected by `ExtProcServer.quiet` in `app._leave`; red (503s, until Envoy's health check
    has noticed) when the port closes at once."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(backend("b"))
        engine.event_pause_s = 0.05
        old, new = [
            await stack.enter_async_context(picker_process(tmp_path / name, [engine.address]))
            for name in ("old", "new")
        ]
        # Long between two checks: without protection requests fail until the next one, however the
        # moments fall.
        before = await stack.enter_async_context(
            _gateway(tmp_path / "envoy", [old, new], [engine], health_interval_s=0.5)
        )
        connector = aiohttp.TCPConnector(limit=0)
        client = await stack.enter_async_context(
            aiohttp.ClientSession(before.url, connector=connector)
        )
        statuses: Counter[int] = Counter()

        async def steadily(until_s: float) -> None:
            while time.perf_counter() < until_s:
                async with client.post("/v1/chat/completions", json=CHAT) as response:
                    await response.read()
                    statuses[response.status] += 1
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(_sse(client, 80)) for _ in range(50)]
            for _ in range(4):
                tasks.create_task(steadily(time.perf_counter() + 3))
            await asyncio.sleep(0.5)
            old.terminate()
            assert await old.ended(30) == 0
        assert statuses.keys() == {200}, statuses
        assert all(answer.result().endswith(b"data: [DONE]\n\n") for answer in answers)


async def test_A21_nothing_idle_holds_up_the_end(tmp_path: Path) -> None:
    """Protected by `ExtProcServer.drain`, which counts its own streams; red (minutes) when it waits
    for gRPC, which counts connections that never said a word."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(backend("b"))
        picker = await stack.enter_async_context(picker_process(tmp_path, [engine.address]))
        for port in picker.ports.values():
            for _ in range(10):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        for name in ("metrics", "admin"):
            client = await stack.enter_async_context(aiohttp.ClientSession())
            async with client.get(f"http://127.0.0.1:{picker.ports[name]}/healthz") as response:
                assert await response.read()  # and the connection stays
        for name in ("grpc", "health"):
            target = f"127.0.0.1:{picker.ports[name]}"
            made = await stack.enter_async_context(aio.insecure_channel(target))
            watch = made.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            assert await watch.read() is not aio.EOF
        begun = time.perf_counter()
        picker.terminate()
        assert await picker.ended(10) == 0
        assert time.perf_counter() - begun < scaled(2)


async def test_A21_readiness_goes_at_once_and_liveness_stays(tmp_path: Path) -> None:
    """Protected by `Health.leave` in `app._leave`, before anything is waited for; red when it comes
    after the drain."""
    async with (
        backend("b") as engine,
        picker_process(tmp_path, [engine.address]) as picker,
        channel(picker.ports["grpc"]) as to,
    ):
        running = call(to)
        await running.send(envoy.request_headers({":path": "/", ":method": "GET"}, end=True))
        await running.replies(1)
        picker.terminate()
        await picker.until_serving(False, within_s=0.5)
        assert await _status(picker, "readiness") == "NOT_SERVING"
        assert await _status(picker, "liveness") == "SERVING"
        assert await _status(picker, protocol.EXT_PROC_SERVICE) == "NOT_SERVING"
        assert picker.process.returncode is None
        await running.send(envoy.response_headers(end=True))
        await running.replies(1)
        await running.done_writing()
        assert await running.reply() is None
        assert await picker.ended(10) == 0


async def _status(picker: PickerProcess, service: str) -> str:
    async with aio.insecure_channel(f"127.0.0.1:{picker.ports['health']}") as to:
        check = to.unary_unary("/grpc.health.v1.Health/Check")
        request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        response = health_pb2.HealthCheckResponse.FromString(await check(request))
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


async def test_A20_health_answers_while_long_prompts_are_scored(tmp_path: Path) -> None:
    """Protected by `Offload.run`; red when it computes on the event loop. One good round of eight
    will do: a busy machine only makes it worse, and a blocked loop is slow in each. Besides the
    limit, which a fast machine keeps even with a blocked loop, a check may not wait for most of
    the time that the prompts take."""
    ids = b",".join([b"7"] * (MIB // 2))  # of all prompts of 1 MB the one with most tokens
    body = b'{"model":"m","prompt":[' + ids + b"]}"
    async with (
        backend("b") as engine,
        picker_process(tmp_path, [engine.address]) as picker,
        channel(picker.ports["grpc"]) as to,
        channel(picker.ports["grpc"]) as beside,
    ):
        check = beside.unary_unary("/grpc.health.v1.Health/Check")
        await check(b"")

        async def probe(took: list[float]) -> None:
            while True:
                begun = time.perf_counter()
                await check(b"")
                took.append(time.perf_counter() - begun)
                await asyncio.sleep(0.01)

        async def answered(stream: Call) -> None:
            assert await stream.reply() is not None
            stream.cancel()

        async def round_of_twenty() -> tuple[float, float]:
            """The checks' p99, and how long the prompts took, in seconds. All bodies are there
            before the first of them ends."""
            streams = [call(to) for _ in range(20)]
            for stream in streams:
                await stream.send(envoy.request_headers(), envoy.request_body(body))
            await asyncio.sleep(0.2)
            took: list[float] = []
            begun = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                probing = tasks.create_task(probe(took))
                for stream in streams:
                    await stream.send(envoy.request_body(end=True))
                await asyncio.gather(*map(answered, streams))
                whole = time.perf_counter() - begun
                await asyncio.sleep(0.05)
                probing.cancel()
            return sorted(took)[int(len(took) * 0.99)], whole

        rounds: list[tuple[float, float]] = []
        while not any(p99 < min(scaled(0.2), 0.7 * whole) for p99, whole in rounds):
            assert len(rounds) < 8, rounds
            rounds.append(await round_of_twenty())


async def test_A19_1500_slow_answers_do_not_hold_up_the_next_request(tmp_path: Path) -> None:
    """Protected by `max_streams`, and by Envoy's raised circuit breakers; red with 1,024."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(backend("b"))
        engine.event_pause_s = scaled(60)
        picker = await stack.enter_async_context(picker_process(tmp_path, [engine.address]))
        before = await stack.enter_async_context(_gateway(tmp_path / "envoy", [picker], [engine]))
        connector = aiohttp.TCPConnector(limit=0)
        client = await stack.enter_async_context(
            aiohttp.ClientSession(before.url, connector=connector)
        )

        async def first_event(response: aiohttp.ClientResponse) -> None:
            assert response.status == 200
            assert await response.content.readuntil(b"\n\n")

        for _ in range(15):
            opened = await asyncio.gather(*(client.get("/sse?n=9") for _ in range(100)))
            await asyncio.gather(*map(first_event, opened))
            for response in opened:
                stack.callback(response.close)
        assert await picker.metric("llm_d_epp_extproc_streams_inflight") >= 1_500
        begun = time.perf_counter()
        async with client.post("/v1/chat/completions", json=CHAT) as response:
            assert response.status == 200
        assert time.perf_counter() - begun < scaled(0.5)


@pytest.mark.parametrize(
    ("clients", "pause_s"), [(20, 0.2), pytest.param(100, 0.4, marks=pytest.mark.long)]
)
async def test_G14_a_retry_storm_ends_when_the_engines_are_back(
    tmp_path: Path, clients: int, pause_s: float
) -> None:
    """Protected by the end of each reservation when an answer ends; red when a stream that ended
    keeps its progress. Clients that got a 503 ask again at once, for as long as engines are out."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(backend(f"b{n}")) for n in range(3)]
        picker = await stack.enter_async_context(
            picker_process(tmp_path, [engine.address for engine in engines])
        )
        before = await stack.enter_async_context(
            _gateway(tmp_path / "envoy", [picker], engines, retries=False)
        )
        connector = aiohttp.TCPConnector(limit=0)
        client = await stack.enter_async_context(
            aiohttp.ClientSession(before.url, connector=connector)
        )
        out_s = 5 if clients > 20 else 2
        statuses: Counter[int] = Counter()
        back: list[float] = []
        begun = time.perf_counter()

        async def ask(number: int) -> None:
            body = CHAT | {"messages": [{"role": "user", "content": f"{number} " * 500}]}
            while True:
                out = time.perf_counter() - begun < out_s
                path = "/status/503" if out else "/v1/chat/completions"
                async with client.post(path, json=body) as response:
                    await response.read()
                statuses[response.status] += 1
                if response.status == 200:
                    back.append(time.perf_counter() - begun - out_s)
                    return
                await asyncio.sleep(pause_s)

        at_rest, cpu = picker.rss_bytes, picker.cpu_s
        await asyncio.gather(*map(ask, range(clients)))
        took = time.perf_counter() - begun
        assert statuses[503] >= clients
        assert max(back) < scaled(2), sorted(back)[-5:]
        assert picker.rss_bytes - at_rest < 64 * MIB
        assert picker.cpu_s - cpu < took
        await picker.until_metric("llm_d_epp_extproc_streams_inflight", 0)
        await picker.until_metric("epp_endpoint_reserved_requests", 0)
        assert await picker.metric("llm_d_epp_ready_endpoints") == 3
        seen = Counter()
        for _ in range(30):
            async with client.post("/v1/chat/completions", json=CHAT | {"seed": 1}) as response:
                seen[await response.text()] += 1
        assert sum(seen.values()) == 30


@asynccontextmanager
async def _late(port: int, delay_s: float) -> AsyncIterator[int]:
    """A way to a server on which each answer takes `delay_s` longer; gives its port."""

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wait_s: float
    ) -> None:
        try:
            while data := await reader.read(65_536):
                await asyncio.sleep(wait_s)
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, to, 0.0), pump(there, writer, delay_s))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize("delay_s", [0.3, 3.0])
async def test_A17_a_late_store_makes_no_decision_late(tmp_path: Path, delay_s: float) -> None:
    """Protected by the log being followed in a task of its own, so that decisions read memory
    alone; red (nobody is served) when the picker waits for it."""
    with running() as redis:
        async with (
            _late(int(redis.url.rpartition(":")[2].partition("/")[0]), delay_s) as port,
            backend("b") as engine,
            picker_process(
                tmp_path,
                [engine.address],
                *("--store", "redis", "--redis-url", f"redis://127.0.0.1:{port}/0"),
            ) as picker,
            channel(picker.ports["grpc"]) as to,
        ):
            took = []
            for number in range(20):
                body = json.dumps({"model": "m", "prompt": f"{number} word " * 200}).encode()
                begun = time.perf_counter()
                stream = call(to)
                await stream.send(envoy.request_headers(), envoy.request_body(body, end=True))
                assert envoy.kinds(await stream.replies(1)) == ["request_headers"]
                took.append(time.perf_counter() - begun)
                stream.cancel()
            assert sorted(took)[10] < scaled(0.1), took
            assert max(took) < scaled(0.3), took
            picker.terminate()
            assert await picker.ended(10) == 0
