"""A relay in front of a test's engine, and a journal that remembers what it was told."""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from epp.tracing.spans import Tracer
from sidecar.connectors.nixlv2 import NixlV2
from sidecar.guard import Guard
from sidecar.http.measuring import Measuring
from sidecar.http.service import Service
from sidecar.metrics import Metrics
from sidecar.proxy import Ended, Limits, Listen, Relay
from sidecar.settings import Kind
from sidecar.shells import shell_of, upstream_of
from sidecar.transfer.course import Course
from sidecar.transfer.door import Door
from sidecar.transfer.job import Tools
from sidecar.transfer.split import Splitter
from sidecar.transfer.steps import HandoffPolicy
from sidecar.trust.named import Trust
from tests.fakes.waiting import until
from tests.timing import scaled


@dataclass
class Notes:
    """A `proxy.Journal` and the readiness that `/health` answers with."""

    first: list[tuple[str, float]] = field(default_factory=list)
    over: list[Ended] = field(default_factory=list)
    refused: int = 0
    suspect: int = 0
    not_ready: str | None = None

    def first_token(self, decision_id: str, ttft_s: float) -> None:
        self.first.append((decision_id, ttft_s))

    def ended(self, ended: Ended) -> None:
        self.over.append(ended)

    def engine_refused(self) -> None:
        self.refused += 1

    def engine_suspect(self) -> None:
        self.suspect += 1

    async def last(self) -> Ended:
        """The exchange that ends next, or has ended."""
        await until(lambda: self.over)
        return self.over[-1]


@dataclass
class Rig:
    relay: Relay
    notes: Notes
    port: int
    session: aiohttp.ClientSession
    """A client that undoes no encoding."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, data: bytes, *, until_close: bool = True) -> bytes:
        """Send bytes, and return all that comes until the relay closes (or the first piece)."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(10):
                return await (reader.read() if until_close else reader.read(65536))
        finally:
            writer.close()


kind: Kind = "own"
"""The relay of tests that do not say which; see the fixture `each_relay`."""


def relay_for(
    engine_port: int,
    notes: Notes,
    limits: Limits,
    *,
    port: int = 0,
    request_usage: bool = True,
    tls: ssl.SSLContext | None = None,
) -> Relay:
    """A relay that hands nothing over."""
    upstream = upstream_of(kind, f"http://127.0.0.1:{engine_port}", limits)
    page = Metrics()
    metrics = page.handoff
    door = Door(guard=Guard("default/engine-0"))
    splitter = Splitter(
        door=door,
        tools=Tools(
            upstream=upstream,
            plan=NixlV2(),
            limits=limits,
            clock=time.monotonic,
            tracer=Tracer(rng=random.Random(1), wall_s=lambda: 0.0, share=1.0),
        ),
        policy=HandoffPolicy(),
        journal=notes,
        metrics=metrics,
        refusing=lambda: notes.not_ready,
        wall_s=lambda: 0.0,
        new_id=lambda: "leg",
    )
    service = Service(
        upstream=upstream,
        door=door,
        course=Course(
            trust=Trust(guard=door.guard, pool="default/pool", metrics=metrics),
            splitter=splitter,
            encoders=None,
            metrics=page.encoding,
            wall_s=lambda: 0.0,
        ),
        metrics=metrics,
        measuring=Measuring(
            metrics=page.answers, served=lambda: ("m",), request_usage=request_usage
        ),
        journal=notes,
        refusing=lambda: notes.not_ready,
        limits=limits,
        clock=time.monotonic,
        wall_s=lambda: 0.0,
    )
    return shell_of(kind, Listen(host="127.0.0.1", port=port, tls=tls), service)


@asynccontextmanager
async def relay_to(
    engine_port: int,
    limits: Limits | None = None,
    *,
    request_usage: bool = True,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Rig]:
    notes = Notes()
    limits = limits or Limits(connect_timeout_s=scaled(2.0))
    relay = relay_for(engine_port, notes, limits, request_usage=request_usage, tls=tls)
    port = await relay.start()
    try:
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            yield Rig(relay, notes, port, session)
    finally:
        await relay.close()
