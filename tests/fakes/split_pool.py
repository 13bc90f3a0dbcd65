"""A pool of simulated engines that hand over KV, each behind a real sidecar.

Leaving the pool checks that no lease ended and nothing was pulled that was not offered just before;
a test that means such a thing says so.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from epp.protocol import DECISION_ID, PREFILLER
from epp.sim.serving.faults import Faults
from epp.sim.serving.server import EngineServer
from sidecar.app import Sidecar
from tests.fakes.engines import running_engine
from tests.fakes.sidecars import LogReader, quick_settings, running_sidecar
from tests.fakes.upstreams import Conversation, RawUpstream, Script, answer
from tests.fakes.waiting import until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
KEY = "k" * 32
ENGINE = {"handshake_s": 3.0, "pull_setup_s": 0.001, "lease_s": 20.0}


@dataclass
class Station:
    """One engine and its sidecar."""

    engine: EngineServer | RawUpstream
    sidecar: Sidecar

    @property
    def sim(self) -> EngineServer:
        assert isinstance(self.engine, EngineServer)
        return self.engine

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.sidecar.port}"

    @property
    def url(self) -> str:
        scheme = "http" if self.sidecar.certificates.server is None else "https"
        return f"{scheme}://{self.address}"

    @property
    def pins(self) -> Any:
        return self.sim.driver.engine.pins

    @property
    def bodies(self) -> list[bytes]:
        """Request bodies that the engine got."""
        if isinstance(self.engine, RawUpstream):
            return [one.body for one in self.engine.received if one.line.startswith(b"POST ")]
        return [one.body for one in self.engine.recorder.requests]

    def fault(self, **faults: Any) -> None:
        self.sim.faults.set(Faults(**faults))

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of this metric that have these labels."""
        page = generate_latest(self.sidecar.metrics.registry).decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == f"epp_sidecar_{name}" and labels.items() <= sample.labels.items()
        )

    def handoffs(self) -> dict[tuple[str, str], int]:
        """Count by outcome and reason."""
        page = generate_latest(self.sidecar.metrics.registry).decode()
        return {
            (sample.labels["outcome"], sample.labels["reason"]): int(sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "epp_sidecar_handoff_total"
        }

    async def counted(self, expected: dict[tuple[str, str], int]) -> None:
        """Assert what it counted. A client may see an answer's end before the sidecar counts."""
        with suppress(TimeoutError):
            await until(lambda: self.handoffs() == expected)
        assert self.handoffs() == expected

    async def ended(self, outcome: str) -> None:
        """Assert the outcome of its one handoff, whatever the reason."""
        with suppress(TimeoutError):
            await until(self.handoffs)
        assert [key[0] for key in self.handoffs()] == [outcome]


@dataclass
class SplitPool:
    """The last station decodes, the others prefill."""

    stations: list[Station]
    session: aiohttp.ClientSession
    log: LogReader
    file: Path
    means_harm: bool = field(default=False)
    """Whether the test lets leases end or parameters be misused on purpose."""

    @property
    def prefill(self) -> Station:
        return self.stations[0]

    @property
    def decode(self) -> Station:
        return self.stations[-1]

    @property
    def targets(self) -> str:
        return ",".join(station.address for station in self.stations[:-1])

    async def post(
        self, body: Any, path: str = COMPLETIONS, *, targets: str | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Send to the decode sidecar what a picker would send for a split."""
        fields = {
            "content-type": "application/json",
            PREFILLER: self.targets if targets is None else targets,
            DECISION_ID: "d-1",
            **headers,
        }
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = self.decode.url + path
        async with self.session.post(url, data=data, headers=fields) as response:
            answer = response.status, await response.read()
        await self.settle()  # what is counted is counted after the last byte
        return answer

    async def gone_once(self, body: Any, reached: Callable[[], object]) -> None:
        """A client that leaves as soon as `reached()` holds, and waits for nothing else."""
        data = json.dumps(body).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", self.decode.sidecar.port)
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"%b: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (
                COMPLETIONS.encode(),
                PREFILLER.encode(),
                self.targets.encode(),
                len(data),
                data,
            )
        )
        await until(reached)
        writer.close()

    async def alone(self, body: Any, path: str = COMPLETIONS) -> bytes:
        """The same from one engine that hands over nothing."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"content-type": "application/json"}
        async with (
            running_engine() as engine,
            self.session.post(engine.url + path, data=data, headers=fields) as response,
        ):
            return await response.read()

    async def settle(self) -> None:
        """Wait until no sidecar has anything in flight."""
        await until(lambda: not any(station.sidecar.relay.in_flight for station in self.stations))

    def check(self) -> None:
        for station in self.stations:
            if isinstance(station.engine, EngineServer) and not self.means_harm:
                counts = station.pins.counters
                assert station.engine.driver.engine.dead is None
                assert (counts.expired, counts.late, counts.reused, counts.unknown) == (0, 0, 0, 0)
                assert len(station.pins) == 0, "KV is kept for nobody"

    def forget(self) -> None:
        """Let engines keep nothing any more: a sidecar ends when nothing is pinned."""
        for station in self.stations:
            if isinstance(station.engine, EngineServer) and len(station.pins):
                station.engine.restart()


@asynccontextmanager
async def split_pool(
    directory: Path,
    *,
    prefills: int = 1,
    engines: dict[str, Any] | None = None,
    upstreams: dict[int, RawUpstream] | None = None,
    ready: bool = True,
    session_tls: ssl.SSLContext | None = None,
    **settings: Any,
) -> AsyncIterator[SplitPool]:
    """`engines` are settings of the engines, `settings` those of the sidecars. `session_tls` is how
    the client speaks to sidecars with certificates.

    `upstreams` replaces the engines of these stations; -1 is the one that decodes.
    """
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(LogReader().running())
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=session_tls or True),
                auto_decompress=False,
            )
        )
        file, key = directory / "endpoints.json", directory / "leg-key"
        key.write_text(KEY + "\n")
        file.write_text('{"endpoints": []}')
        defaults: dict[str, Any] = {
            "endpoints_file": file,
            "leg_key_file": key,
            "endpoints_interval_s": 0.01,
            "model": "sim",
            "compare_pairs": False,
        }
        pool = SplitPool([], session, log, file)
        replaced = upstreams or {}
        for number in range(prefills + 1):
            index = -1 if number == prefills else number
            engine: EngineServer | RawUpstream
            if index in replaced:
                engine = replaced[index]
                engine.script = _healthy(engine.script)
                await stack.enter_async_context(engine.running())
            else:
                role = "producer" if index >= 0 else "consumer"
                engine = await stack.enter_async_context(
                    running_engine(
                        name=f"e{number}",
                        kv_role=role,
                        hash_seed=number,
                        **{**ENGINE, **(engines or {})},
                    )
                )
            if isinstance(engine, EngineServer) and engine.handover is not None and not number:
                defaults |= {
                    "bootstrap_port": engine.handover.port,
                    "p2p_port": engine.handover.port,
                }
            sidecar = await stack.enter_async_context(
                running_sidecar(
                    quick_settings(
                        engine.port,
                        log.server.port,
                        name=f"default/e{number}",
                        **{**defaults, **settings},
                    )
                )
            )
            pool.stations.append(Station(engine, sidecar))
        entries = [
            {"name": f"e{number}", "address": "127.0.0.1", "port": station.sidecar.port}
            for number, station in enumerate(pool.stations)
        ]
        file.write_text(json.dumps({"endpoints": entries}))
        if ready:
            await until(
                lambda: all(
                    (len(one.sidecar.guard) > prefills or "endpoints_file" in settings)
                    and one.sidecar.engine.ready
                    for one in pool.stations
                )
            )
        yield pool
        await pool.settle()
        if not pool.means_harm:
            with_sims = [one for one in pool.stations if isinstance(one.engine, EngineServer)]
            await until(lambda: not any(len(one.pins) for one in with_sims), within_s=3)
        pool.check()
        pool.forget()


def _healthy(script: Script) -> Script:
    """An engine that is ready, whatever it does with requests."""

    async def either(talk: Conversation) -> None:
        await (answer() if talk.request.line.startswith(b"GET /health") else script)(talk)

    return either


def text_of(answer: bytes) -> str:
    """The text of a whole answer or of a stream, of any API; token ids where there is no text."""
    if not answer.startswith((b"data:", b"event:")):
        return _said(json.loads(answer))
    lines = [line[6:] for line in answer.splitlines() if line.startswith(b"data: {")]
    return "".join(_said(json.loads(line)) for line in lines)


def _said(answer: dict[str, Any]) -> str:
    """What a whole answer says, or one event."""
    match answer:
        case {"choices": [{"text": str(text)}]}:
            return text
        case {"choices": [{"message": {"content": str(text)}}]}:
            return text
        case {"choices": [{"delta": dict(delta)}]}:
            return str(delta.get("content", ""))
        case {"choices": [{"token_ids": list(ids)}]}:
            return "".join(f" {token}" for token in ids)
        case {"output": [{"content": [{"text": str(text)}]}]}:
            return text
        case {"content": [{"text": str(text)}]}:
            return text
        case {"type": "content_block_delta", "delta": {"text": str(text)}}:
            return text
        case {"type": "response.output_text.delta", "delta": str(text)}:
            return text
    return ""


def prompt(name: str, words: int = 60) -> str:
    """A prompt that shares nothing with those of other names."""
    return " ".join(f"{name}{number}" for number in range(words))


async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)
