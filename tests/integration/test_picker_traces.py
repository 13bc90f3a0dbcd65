"""`epp serve` as a whole: what a collector of traces is told, and what the pod is."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec

from epp import app
from epp.config.serve import serve_settings
from epp.tracing.context import read
from tests.fakes import extproc_client
from tests.fakes.backend import backend
from tests.fakes.collector import Collector
from tests.fakes.extproc_messages import request_body, request_headers, response_headers, set_in
from tests.fakes.waiting import until

CLIENT = f"00-{'a' * 31}1-{'b' * 16}-01"
PORTS = ("grpc_port", "grpc_health_port", "metrics_port", "admin_port", "state_port")


@asynccontextmanager
async def picker(directory: Path, **flags: object) -> AsyncIterator[app.Ports]:
    """Of one pod."""
    file = directory / "endpoints.yaml"
    ports: asyncio.Future[app.Ports] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    settings = serve_settings(
        {
            "endpoints_file": file,
            "host": "127.0.0.1",
            "secure_serving": False,
            "drain_timeout_s": 0,
            "decision_deadline_s": 5,
            **dict.fromkeys(PORTS, 0),
            **flags,
        }
    )
    async with AsyncExitStack() as stack:
        pod = await stack.enter_async_context(backend("pod"))
        entry = {"name": "pod", "address": "127.0.0.1", "port": pod.address.rpartition(":")[2]}
        file.write_bytes(msgspec.json.encode({"endpoints": [entry]}))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(app.serve(settings, started=ports.set_result, stop=stop))
        yield await ports
        stop.set()


async def told(port: int, headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that the gateway is to set on a request, which is answered then."""
    usual = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}
    async with extproc_client.channel(port) as channel:
        call = extproc_client.call(channel)
        body = msgspec.json.encode({"model": "m", "prompt": "hello"})
        await call.send(request_headers({**usual, **headers}), request_body(body, end=True))
        reply = await call.reply()
        assert reply is not None
        assert reply.WhichOneof("response") == "request_headers", reply
        await call.send(response_headers("200"))
        await call.reply()
        await call.done_writing()
        return set_in(reply.request_headers.response.header_mutation)


async def test_a_request_is_told_to_the_collector_and_its_place_to_the_pod(tmp_path: Path) -> None:
    collector = Collector()
    async with collector.upstream.running():
        async with picker(tmp_path, trace_endpoint=collector.endpoint) as ports:
            found = await told(ports.grpc, {"traceparent": CLIENT})
            await until(lambda: len(collector.spans) == 2)
            url = f"http://127.0.0.1:{ports.metrics}/metrics"
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                page = await response.text()
            await told(ports.grpc, {"traceparent": CLIENT})
        # The last spans are sent before the process ends.
        assert len(collector.spans) == 4
    assert 'epp_spans_total{outcome="sent"} 2.0' in page
    assert "epp_spans_waiting 0.0" in page
    (request, _), (decided, _) = map(
        collector.named, ("gateway.request", "gateway.request_orchestration")
    )
    assert (request.service, request.parent) == ("epp-picker", "b" * 16)
    assert decided.parent == request.span_id
    assert decided.attributes["epp.decision_id"] == found["x-epp-decision-id"]
    assert isinstance(decided.attributes["epp.score"], float)
    context = read([found["traceparent"]])
    assert context is not None
    assert (context.trace_id, context.span_id) == (request.trace_id, request.span_id)


async def test_without_a_collector_no_trace_is_touched(tmp_path: Path) -> None:
    async with picker(tmp_path) as ports:
        assert "traceparent" not in await told(ports.grpc, {"traceparent": CLIENT})
