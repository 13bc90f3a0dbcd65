"""`epp serve` as a whole: what a gateway is told to do with a split request."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec
import pytest

from epp import app, protocol
from epp.config.serve import serve_settings
from tests.fakes import extproc_client
from tests.fakes.backend import backend
from tests.fakes.desk import ask
from tests.fakes.extproc_messages import request_body, request_headers, set_in

ROLES = (("decode", True), ("prefill", True), ("both", False))


def pool(addresses: Sequence[str]) -> str:
    """A destination, a prefill pod, and one of both roles without a sidecar."""
    entries = [
        {
            "name": role,
            "address": "127.0.0.1",
            "port": address.rpartition(":")[2],
            "labels": {"llm-d.ai/role": role},
            "sidecar": sidecar,
        }
        for address, (role, sidecar) in zip(addresses, ROLES, strict=True)
    ]
    return msgspec.json.encode({"endpoints": entries}).decode()


async def told(port: int, body: bytes) -> dict[str, str]:
    """Headers that the gateway is to set on a completion."""
    client = {
        ":path": "/v1/completions",
        ":method": "POST",
        "content-type": "application/json",
        protocol.PREFILLER: "evil:80",
    }
    async with extproc_client.channel(port) as channel:
        call = extproc_client.call(channel)
        await call.send(request_headers(client), request_body(body, end=True))
        reply = await call.reply()
        assert reply is not None
        call.cancel()
    assert reply.WhichOneof("response") == "request_headers", reply
    mutation = reply.request_headers.response.header_mutation
    assert protocol.PREFILLER in mutation.remove_headers
    return set_in(mutation)


@pytest.mark.parametrize(
    ("flags", "tokens", "split"),
    [
        ({}, 2000, True),
        ({}, 100, False),
        ({"split_threshold_tokens": 50}, 100, True),
        ({"split": "never"}, 2000, False),
        ({"split": "always", "prefill_candidates": 1}, 3, True),
    ],
)
async def test_flags_decide_what_the_gateway_is_told(
    tmp_path: Path, flags: dict[str, object], tokens: int, split: bool
) -> None:
    file = tmp_path / "endpoints.yaml"
    ports: asyncio.Future[app.Ports] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    free = ("grpc_port", "grpc_health_port", "metrics_port", "admin_port", "state_port")
    settings = serve_settings(
        {
            "endpoints_file": file,
            "host": "127.0.0.1",
            "secure_serving": False,
            "drain_timeout_s": 0,
            "decision_deadline_s": 5,
            **dict.fromkeys(free, 0),
            **flags,
        }
    )
    async with AsyncExitStack() as stack:
        alive = [await stack.enter_async_context(backend(role)) for role, _ in ROLES]
        decode, *prefill = [each.address for each in alive]
        file.write_text(pool([decode, *prefill]))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(app.serve(settings, started=ports.set_result, stop=stop))
        bound = await ports
        body = msgspec.json.encode(ask(list(range(tokens))))
        while True:  # until the destination is the one with a sidecar
            headers = await told(bound.grpc, body)
            if headers[protocol.DESTINATION] == decode:
                break
            assert protocol.PREFILLER not in headers
        url = f"http://127.0.0.1:{bound.metrics}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as page:
            text = await page.text()
        stop.set()
    named = headers.get(protocol.PREFILLER, "").split(",")
    wanted = prefill if split else [""]
    assert set(named) <= set(wanted)
    assert len(named) == min(int(str(flags.get("prefill_candidates", 2))), len(wanted))
    assert ('epp_split_decisions_total{reason="split"}' in text) == split
