"""A client that performs a handoff between two simulated engines by hand, leg by leg."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from epp.sim.pins import Pins
from epp.sim.serving.server import EngineServer
from tests.fakes.engines import Pair, prefill_body, running_engine, running_pair

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
Json = dict[str, Any]


class Client:
    """Sends legs to a pair of engines."""

    def __init__(self, http: aiohttp.ClientSession, pair: Pair) -> None:
        self.http = http
        self.pair = pair

    async def post(
        self, engine: EngineServer, path: str, body: Json, **headers: str
    ) -> tuple[int, str]:
        async with self.http.post(engine.url + path, json=body, headers=headers) as response:
            return response.status, await response.text()

    async def prefill(self, body: Json, path: str = COMPLETIONS, **headers: str) -> Json:
        status, text = await self.post(self.pair.prefill, path, prefill_body(body), **headers)
        assert status == 200, text
        params: Json = json.loads(text)["kv_transfer_params"]
        return params

    async def decode(self, body: Json, params: object, path: str = COMPLETIONS) -> tuple[int, str]:
        return await self.post(self.pair.decode, path, {**body, "kv_transfer_params": params})

    async def alone(self, body: Json, path: str = COMPLETIONS) -> str:
        """The answer of an engine that hands over nothing."""
        async with running_engine() as engine:
            status, text = await self.post(engine, path, body)
            assert status == 200, text
            return text


@asynccontextmanager
async def clients(**settings: Any) -> AsyncIterator[Client]:
    async with running_pair(**settings) as pair, aiohttp.ClientSession() as http:
        yield Client(http, pair)


def ask(name: str, words: int = 60, **more: Any) -> Json:
    """A completion of a prompt of so many tokens that shares nothing with other names."""
    prompt = " ".join(f"{name}{number}" for number in range(words))
    return {"prompt": prompt, "max_tokens": 8, **more}


def text_of(answer: str) -> str:
    """The text of a whole answer or of a stream."""
    if not answer.startswith("data:"):
        choice = json.loads(answer)["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"]
    pieces = [json.loads(line[6:]) for line in answer.split("\n\n")[:-2]]
    choices = [piece["choices"][0] for piece in pieces if piece["choices"]]
    return "".join(c["text"] if "text" in c else c["delta"]["content"] for c in choices)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def pins(client: Client) -> Pins:
    """What the prefill engine keeps."""
    return client.pair.prefill.driver.engine.pins


async def numbers(client: Client, engine: EngineServer) -> dict[str, float]:
    """The engine's metrics; sources and reasons follow the name after a slash."""
    async with client.http.get(engine.url + "/metrics") as response:
        page = await response.text()
    families = text_string_to_metric_families(page)
    return {
        "".join([s.name, *(f"/{v}" for k, v in s.labels.items() if k in {"source", "reason"})]): (
            s.value
        )
        for family in families
        for s in family.samples
    }
