"""`epp serve` as a whole: what a gateway is told to do with a split request."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from epp import app, protocol
from epp.bodies.sharing import Api
from epp.config.serve import serve_settings
from epp.seals import SealKeys
from sidecar.declared import Declared
from sidecar.guard import Guard
from sidecar.http.incoming import Incoming
from sidecar.transfer.metrics import HandoffMetrics
from sidecar.trust.named import Trust
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


async def told(port: int, body: bytes, path: str = Api.COMPLETIONS) -> dict[str, str]:
    """Headers that the gateway is to set on a request."""
    client = {
        ":path": path,
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
    body = msgspec.json.encode(ask(list(range(tokens))))
    async with served(tmp_path, **flags) as (bound, (decode, *prefill)):
        headers = await told_with_sidecar(bound, decode, body)
        url = f"http://127.0.0.1:{bound.metrics}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as page:
            text = await page.text()
    named = headers.get(protocol.PREFILLER, "").split(",")
    wanted = prefill if split else [""]
    assert set(named) <= set(wanted)
    assert len(named) == min(int(str(flags.get("prefill_candidates", 2))), len(wanted))
    assert ('epp_split_decisions_total{reason="split"}' in text) == split


MESSAGES = [{"role": "user", "content": "hi"}]


async def test_a_gateway_is_told_of_a_split_in_every_api(tmp_path: Path) -> None:
    bodies: dict[str, dict[str, object]] = {
        Api.COMPLETIONS: ask("hi"),
        Api.CHAT: {"model": "m", "messages": MESSAGES},
        Api.RESPONSES: {"model": "m", "input": "hi"},
        Api.MESSAGES: {"model": "m", "messages": MESSAGES, "max_tokens": 9},
        Api.GENERATE: {"token_ids": [1, 2, 3]},
    }
    async with served(tmp_path, split="always") as (bound, (decode, *prefill)):
        for path, body in bodies.items():
            headers = await told_with_sidecar(bound, decode, msgspec.json.encode(body), path)
            assert set(headers[protocol.PREFILLER].split(",")) <= set(prefill)


async def test_what_the_picker_seals_a_sidecar_believes_also_while_the_key_changes(
    tmp_path: Path,
) -> None:
    key = tmp_path / "key"
    key.write_text("a" * 32)
    body = msgspec.json.encode(ask(list(range(2000))))
    metrics = HandoffMetrics(Declared(CollectorRegistry()))
    trust = Trust(guard=Guard("me"), pool="default/pool", metrics=metrics)

    def believed(headers: dict[str, str]) -> bool:
        fields = [(name.encode(), value.encode()) for name, value in headers.items()]
        request = Incoming(method="POST", target="/", fields=fields)
        judged = trust.judged(request, time.time_ns() / 1e9)
        return not isinstance(judged.named(protocol.PREFILLER), str)

    async with served(tmp_path, handoff_key_file=key, pool_name="default/pool") as (bound, pods):
        trust.keys = SealKeys(b"a" * 32, b"b" * 32)
        headers = await told_with_sidecar(bound, pods[0], body)
        assert believed(headers)
        assert not believed({**headers, protocol.PREFILLER: "10.0.0.9:80"})
        first = headers[protocol.HANDOFF].split(";")[1]
        key.write_text("b" * 32 + "\n" + "a" * 32)
        async with asyncio.timeout(10):
            while headers[protocol.HANDOFF].split(";")[1] == first:
                headers = await told_with_sidecar(bound, pods[0], body)
                assert believed(headers)


async def told_with_sidecar(
    bound: app.Ports, decode: str, body: bytes, path: str = Api.COMPLETIONS
) -> dict[str, str]:
    """What is told of a request whose destination is the one with a sidecar."""
    while True:
        headers = await told(bound.grpc, body, path)
        if headers[protocol.DESTINATION] == decode:
            return headers
        assert protocol.PREFILLER not in headers


@asynccontextmanager
async def served(directory: Path, **flags: object) -> AsyncIterator[tuple[app.Ports, list[str]]]:
    """A picker of three pods, and their addresses, the destination first."""
    file = directory / "endpoints.yaml"
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
        addresses = [each.address for each in alive]
        file.write_text(pool(addresses))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(app.serve(settings, started=ports.set_result, stop=stop))
        yield await ports, addresses
        stop.set()
