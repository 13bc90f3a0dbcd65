"""Two real vLLM servers that hand KV over by NIXL, behind our sidecars, picker and Envoy.

They start once for the whole session (a minute or more) and end right after it: each burns half a
core even when idle. Every test leaves both engines up and without pinned blocks. Logs are in the
newest directory under `.epp-local`.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from epp.sim.fleets import vllm
from epp.sim.fleets.fleet import Fleet
from epp.sim.fleets.parts import LEASE_S, FleetSettings
from epp.sim.fleets.ports import HOST, auto_ports
from epp.sim.fleets.roster import roster
from epp.sim.promises import pulls
from epp.sim.promises.pulls import KvCounters
from tests.timing import scaled

Api = Literal["completions", "chat"]
Place = Literal[0, 1]
PREFILL: Place = 0
DECODE: Place = 1
ANSWER_TOKENS = 24
ANSWER_S = 60.0
SEEN_S = 10.0
"""An engine tells its counters at the end of a step, and we ask again and again."""
FREED_S = 5.0
"""How long blocks may stay pinned for a client that has left."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    text: str
    prompt_tokens: int
    raw: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """One greedy request."""

    prompt: str | list[int]
    api: Api = "completions"
    stream: bool = False
    max_tokens: int = ANSWER_TOKENS
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return "/v1/completions" if self.api == "completions" else "/v1/chat/completions"

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": vllm.MODEL,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            **self.more,
        }
        if self.api == "completions":
            body["prompt"] = self.prompt
        else:
            body["messages"] = [{"role": "user", "content": self.prompt}]
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


@dataclass(frozen=True, slots=True)
class Real:
    """The running fleet, and what tests ask of it."""

    fleet: Fleet
    block_bytes: int

    @property
    def gateway(self) -> str:
        return self.fleet.gateway

    def engine(self, place: Place) -> str:
        return self.fleet.engine(place)

    def sidecar(self, place: Place) -> str:
        return self.fleet.sidecar(place)

    def blocks(self, prompt_tokens: int) -> int:
        return math.ceil(prompt_tokens / vllm.BLOCK_TOKENS)

    async def ask(
        self,
        base: str,
        ask: Ask,
        headers: dict[str, str] | None = None,
        *,
        limit_s: float = ANSWER_S,
    ) -> Answer:
        body = json.dumps(ask.body).encode()
        return await self.post(base + ask.path, body, headers, limit_s=limit_s)

    async def post(
        self,
        url: str,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        limit_s: float = ANSWER_S,
    ) -> Answer:
        sent = {"content-type": "application/json", **(headers or {})}
        limit = aiohttp.ClientTimeout(total=scaled(limit_s))
        async with self.fleet.session.post(url, data=body, headers=sent, timeout=limit) as answer:
            raw = await answer.read()
            return read(answer.status, raw, dict(answer.headers))

    async def counters(self, place: Place) -> KvCounters:
        return await pulls.read(self.fleet.session, self.engine(place))

    async def pulled(self, before: KvCounters, transfers: int) -> KvCounters:
        """The decode engine's counters once they show that many more pulls than `before`."""
        return await self.until(
            DECODE, lambda now: now.transfers - before.transfers >= transfers, scaled(SEEN_S)
        )

    async def freed(self, limit_s: float = FREED_S) -> KvCounters:
        """The prefill engine's counters once it holds no block for anybody."""
        return await self.until(PREFILL, lambda now: now.usage == 0, scaled(limit_s))

    async def until(
        self, place: Place, holds: Callable[[KvCounters], bool], limit_s: float
    ) -> KvCounters:
        """Counters for which it holds; fails the test when they do not come in time."""
        deadline = time.monotonic() + limit_s
        while not holds(now := await self.counters(place)):
            assert time.monotonic() < deadline, now
            await asyncio.sleep(0.05)
        return now

    async def alone(self, *asks: Ask) -> list[str]:
        """What the prefill engine itself answers; it remembers nothing of it afterwards."""
        answers = [await self.ask(self.engine(PREFILL), ask) for ask in asks]
        assert all(answer.status == 200 and answer.text for answer in answers)
        await self.forget(PREFILL)
        return [answer.text for answer in answers]

    async def forget(self, place: Place) -> None:
        """Empty the engine's prefix cache; nothing may be pinned."""
        await self.until(place, lambda now: now.usage == 0, scaled(FREED_S))
        async with self.fleet.session.post(f"{self.engine(place)}/reset_prefix_cache") as answer:
            assert answer.status == 200

    async def page(self, metrics_port: int) -> str:
        async with self.fleet.session.get(f"http://{HOST}:{metrics_port}/metrics") as answer:
            return await answer.text()

    async def handoffs(self, metrics_port: int | None = None) -> dict[tuple[str, str], int]:
        """What a sidecar counted, by outcome and reason; None: the decode engine's own."""
        port = metrics_port or self.fleet.settings.ports.sidecar_metrics[DECODE]
        page = await self.page(port)
        return {
            (sample.labels["outcome"], sample.labels["reason"]): int(sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "epp_sidecar_handoff_total"
        }

    async def counted(
        self, expected: dict[tuple[str, str], int], metrics_port: int | None = None
    ) -> None:
        """Assert what the sidecar counted. A client may see an answer's end before it counts."""
        deadline = time.monotonic() + scaled(SEEN_S)
        while (now := await self.handoffs(metrics_port)) != expected:
            assert time.monotonic() < deadline, (now, expected)
            await asyncio.sleep(0.05)

    async def meet(self) -> None:
        """Let the engines shake hands. vLLM gives that 5 s, too little on a machine that is busy;
        what a failed pull leaves behind comes free with its lease.
        """
        async with asyncio.timeout(scaled(300)):
            while not (await self.counters(DECODE)).transfers:
                assert (await self.ask(self.gateway, Ask("how do you do?"))).status == 200
                await asyncio.sleep(1)
        await self.freed(LEASE_S["vllm"] + 10)

    async def assert_alive(self) -> None:
        for place in (PREFILL, DECODE):
            async with self.fleet.session.get(f"{self.engine(place)}/health") as answer:
                assert answer.status == 200


def read(status: int, raw: bytes, headers: dict[str, str]) -> Answer:
    """Both APIs, streamed or not."""
    if status != 200:
        return Answer(status, "", 0, raw, headers)
    if raw.startswith(b"data:"):
        lines = [line[5:].strip() for line in raw.split(b"\n") if line.startswith(b"data:")]
        assert lines[-1] == b"[DONE]"
        parts = [json.loads(line) for line in lines[:-1]]
    else:
        parts = [json.loads(raw)]
    text, tokens = "", 0
    for part in parts:
        assert "error" not in part, part
        tokens = (part.get("usage") or {}).get("prompt_tokens", tokens)
        for choice in part["choices"]:
            message = choice.get("message") or choice.get("delta") or choice
            text += message.get("text") or message.get("content") or ""
    return Answer(status, text, tokens, raw, headers)


@pytest.fixture(scope="session")
def words() -> Callable[[int], str]:
    """Texts that share no block with each other: they differ from their first word on."""
    rng = random.Random(20_260)
    vocabulary = [path.stem for path in sorted(Path(random.__file__).parent.glob("*.py"))]

    def text(count: int) -> str:
        return " ".join(f"{rng.choice(vocabulary)}{rng.randrange(1000)}" for _ in range(count))

    return text


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def real() -> AsyncIterator[Real]:
    settings = FleetSettings(
        prefill=1,
        decode=1,
        kind="vllm",
        split="always",
        ports=auto_ports(len(roster(0, 1, 1)), random.SystemRandom()),
        engine_env={"VLLM_SERVER_DEV_MODE": "1"},  # for /reset_prefix_cache
    )
    async with Fleet(settings, lambda name, what: print(f"{name} {what}", flush=True)) as fleet:
        real = Real(fleet, vllm.find().block_bytes())
        await real.meet()
        yield real
