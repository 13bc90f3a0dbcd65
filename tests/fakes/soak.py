"""Many requests through real sidecar processes, with everything going wrong at random.

Two prefill pods and one that decodes. The engines are simulated, in this process, so that what they
keep can be counted; the sidecars are processes of their own, so that their memory can. Clients
leave, engines die and come back as others, legs are slow, break off or answer with errors.
"""

import asyncio
import json
import random
import re
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from epp.protocol import DECISION_ID, PREFILLER
from epp.sim.serving.faults import Faults
from epp.sim.serving.server import EngineServer
from tests.fakes.engines import running_engine
from tests.fakes.pods import sidecar_process
from tests.fakes.sidecars import LogReader
from tests.fakes.split_pool import CHAT, COMPLETIONS, KEY, prompt, text_of
from tests.fakes.waiting import until
from tests.timing import scaled

PROMPTS = 24
CLIENTS = 24
"""Requests at once."""
TOKENS = 12
LEASE_S, MARGIN_S = 8.0, 4.0
LEAVES = 0.15
"""Share of clients that leave at a random moment."""
WHOLE = 0.35
"""Share of requests that no picker wanted split."""
CHAOS_S = 0.15
"""Mean time between two troubles."""


@dataclass
class Pod:
    """One engine and the process beside it."""

    engine: EngineServer
    process: Process
    port: int
    pages: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def own_mb(self) -> float:
        """Memory of its own: the pages of libraries are there once for all sidecars of a node."""
        return self._held("RssAnon")

    @property
    def rss_mb(self) -> float:
        return self._held("VmRSS")

    def _held(self, name: str) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", text)
        assert found
        return int(found[1]) / 1024

    async def page(self, http: aiohttp.ClientSession) -> dict[str, float]:
        """Sums of its own metrics, by name."""
        async with http.get(f"http://127.0.0.1:{self.pages}/metrics") as response:
            text = await response.text()
        sums: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith("epp_sidecar_"):
                    sums[sample.name.removeprefix("epp_sidecar_")] += sample.value
        return dict(sums)


@dataclass
class Soak:
    """A pool under load. Call `run` as often as wanted, then `settle` and look."""

    pods: list[Pod]
    log: LogReader
    http: aiohttp.ClientSession
    """For pages; clients have sessions of their own."""
    rng: random.Random
    expected: dict[bytes, str]
    """What each body's answer says."""
    outcomes: Counter[str] = field(default_factory=Counter)
    answered: set[str] = field(default_factory=set)
    """Decisions whose clients got the head of an answer."""
    wrong: list[str] = field(default_factory=list)
    """Whole answers that are not right."""
    sent: int = 0

    @property
    def decode(self) -> Pod:
        return self.pods[-1]

    async def run(self, requests: int, *, troubled: bool = True) -> None:
        """Send so many requests, `CLIENTS` at a time."""
        left = iter(range(requests))
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as tg:
            chaos = tg.create_task(self._chaos()) if troubled else None
            clients = [tg.create_task(self._client(http, left)) for _ in range(CLIENTS)]
            await asyncio.wait(clients)
            if chaos is not None:
                chaos.cancel()
        for pod in self.pods:
            pod.engine.faults.set(Faults())

    async def _client(self, http: aiohttp.ClientSession, left: Any) -> None:
        rng = self.rng
        for _ in left:
            self.sent += 1
            decision = f"d-{self.sent}"
            body = rng.choice(list(self.expected))
            patience = rng.expovariate(1 / 0.05) if rng.random() < LEAVES else scaled(60)
            try:
                async with asyncio.timeout(patience):
                    self.outcomes[await self._ask(http, decision, body)] += 1
            except TimeoutError:
                self.outcomes["left" if patience < scaled(60) else "hangs"] += 1

    async def _ask(self, http: aiohttp.ClientSession, decision: str, body: bytes) -> str:
        headers = {"content-type": "application/json", DECISION_ID: decision}
        if self.rng.random() >= WHOLE:
            targets = [pod.address for pod in self.pods[:-1]]
            self.rng.shuffle(targets)
            headers[PREFILLER] = ",".join(targets)
        path = CHAT if b'"messages"' in body else COMPLETIONS
        url = f"http://{self.decode.address}{path}"
        got = b""
        try:
            async with http.post(url, data=body, headers=headers) as response:
                self.answered.add(decision)
                if response.status != 200:
                    return f"status-{response.status}"
                async for piece in response.content.iter_any():
                    got += piece
        except aiohttp.ClientPayloadError:
            return "cut"
        except aiohttp.ClientConnectionError:
            return "lost"
        if b'"error"' in got:
            return "error-event"
        if text_of(got) == self.expected[body]:
            return "whole"
        self.wrong.append(f"{decision}: {body!r} -> {got!r}")
        return "wrong"

    async def _chaos(self) -> None:
        rng = self.rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / CHAOS_S))
            pod = rng.choice(self.pods)
            trouble = rng.choice(
                [
                    Faults(),
                    Faults(latency_s=0.2),
                    Faults(status=503, status_count=2),
                    Faults(status=500, status_share=0.3),
                    Faults(reset_after_chunks=rng.randrange(6)),
                    Faults(fail_pulls=2),
                    None,
                ]
            )
            if trouble is None:
                pod.engine.restart()
            else:
                pod.engine.faults.set(trouble)

    async def settle(self) -> None:
        """Wait until nothing is left: of exchanges, handoffs, connections, bodies and blocks."""
        kept = ("in_flight", "handoffs", "held_bytes", "connections", "engine_connections")
        pages: list[dict[str, float]] = []
        async with asyncio.timeout(scaled(3 * LEASE_S)):
            while True:
                pages = [await pod.page(self.http) for pod in self.pods]
                pinned = sum(len(pod.engine.driver.engine.pins) for pod in self.pods)
                if not pinned and not any(page[name] for page in pages for name in kept):
                    return
                await asyncio.sleep(0.1)

    async def tasks(self) -> list[float]:
        """Of each sidecar, with nothing in flight."""
        return [(await pod.page(self.http))["tasks"] for pod in self.pods]

    def done(self) -> Counter[str]:
        """How often the end of each decision was told."""
        return Counter(done.decision_id for view in self.log.views.values() for done in view.done)

    async def all_told(self) -> None:
        """Wait until the end of every decision was told that got an answer."""
        await until(lambda: self.answered <= self.done().keys(), within_s=10)


@asynccontextmanager
async def soaked(directory: Path, seed: int) -> AsyncIterator[Soak]:
    """A pool that is ready, and the answers that are right."""
    file, key = directory / "endpoints.json", directory / "leg-key"
    key.write_text(KEY + "\n")
    file.write_text('{"endpoints": []}')
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        log = await enter(LogReader().running())
        http = await enter(aiohttp.ClientSession())
        expected = await answers_to(http, bodies())
        pods: list[Pod] = []
        for number, role in enumerate(("producer", "producer", "consumer")):
            engine = await enter(
                running_engine(
                    crash=never,
                    name=f"e{number}",
                    kv_role=role,
                    hash_seed=number,
                    lease_s=LEASE_S,
                    handshake_s=0.01,
                    pull_setup_s=0.001,
                    num_blocks=4096,
                    kv_load_failure_policy="fail",
                )
            )
            flags = {
                "name": f"default/e{number}",
                "engine-url": engine.url,
                "state-url": f"tcp://127.0.0.1:{log.server.port}",
                "kv-events": engine.kv_events_endpoint,
                "endpoints-file": file,
                "leg-key-file": key,
                "kv-lease": LEASE_S,
                "kv-lease-margin": MARGIN_S,
                "model": "sim",
            }
            argv = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
            pods.append(Pod(engine, *await enter(sidecar_process(*argv, "--no-compare-pairs"))))
        entries = [
            {"name": f"e{number}", "address": "127.0.0.1", "port": pod.port}
            for number, pod in enumerate(pods)
        ]
        file.write_text(json.dumps({"endpoints": entries}))
        soak = Soak(pods, log, http, random.Random(seed), expected)
        await _ready(soak)
        yield soak


async def _ready(soak: Soak) -> None:
    async with asyncio.timeout(scaled(20)):
        for pod in soak.pods:
            while True:
                page = await pod.page(soak.http)
                if page["engine_ready"] and page["pool_members"] == len(soak.pods):
                    break
                await asyncio.sleep(0.05)


def bodies() -> list[bytes]:
    """Requests of each API, streamed and not."""
    made: list[dict[str, Any]] = []
    for number in range(PROMPTS):
        text = prompt(f"s{number}-", 20 + 7 * number)
        said = {"messages": [{"role": "user", "content": text}]} if number % 3 else {"prompt": text}
        made.append({**said, "max_tokens": TOKENS, "stream": number % 2 == 0})
    return [json.dumps(one).encode() for one in made]


async def answers_to(http: aiohttp.ClientSession, asked: list[bytes]) -> dict[bytes, str]:
    """What one engine says that hands over nothing."""
    found: dict[bytes, str] = {}
    async with running_engine() as engine:
        for body in asked:
            path = CHAT if b'"messages"' in body else COMPLETIONS
            fields = {"content-type": "application/json"}
            async with http.post(engine.url + path, data=body, headers=fields) as response:
                found[body] = text_of(await response.read())
    return found


def never(status: int) -> None:
    raise AssertionError(f"the engine died of a request with status {status}")
