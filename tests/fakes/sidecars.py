"""A whole sidecar between a test's engine and a picker's state port that remembers records."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from epp.framework import EndpointId, Incarnation
from epp.state.records import Done, EngineStatus, FirstToken, Record, parse
from epp.state.store.memory import StateServer
from sidecar.app import Sidecar, run
from sidecar.settings import SidecarSettings
from tests.fakes import relays
from tests.timing import scaled


@dataclass
class View:
    """What a reader knows after the records so far; raises when the sequence is broken."""

    incarnation: Incarnation | None = None
    nonce: int = 0
    seq: int = 0
    keys: set[int] = field(default_factory=set)
    status: EngineStatus | None = None
    first: list[FirstToken] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    claims: int = 0
    records: int = 0
    snapshots: int = 0

    def read(self, parts: Iterable[bytes]) -> None:
        """Take a snapshot whole."""
        for data in parts:
            self.apply(data)

    def apply(self, data: bytes) -> None:
        record = parse(data)
        if record.part is not None and record.part.index == 0:
            self._snapshot(record)
        elif record.part is None:
            assert (record.nonce, record.incarnation) == (self.nonce, self.incarnation), (
                "a sequence must begin with a snapshot"
            )
            assert record.seq == self.seq + 1
            self.seq = record.seq
            self.records += 1
        if record.blocks is not None:
            if record.blocks.reset:
                self.keys.clear()
            self.keys |= set(record.blocks.stored)
            self.keys -= set(record.blocks.removed)
        self.status = record.status or self.status
        self.first.extend(record.first_tokens)
        self.done.extend(record.done)

    def _snapshot(self, record: Record) -> None:
        self.snapshots += 1
        if record.nonce != self.nonce or record.incarnation != self.incarnation:
            assert record.seq == 0, "a claim begins with the snapshot before its first record"
            self.claims += 1
            self.nonce, self.incarnation = record.nonce, record.incarnation
        else:
            assert record.seq in {self.seq, self.seq + 1}, "a snapshot includes what was said"
        self.seq = record.seq


class LogReader:
    """A picker's state port; `view` follows what arrives."""

    def __init__(self, *, port: int = 0, token: str | None = None) -> None:
        self.server = StateServer("127.0.0.1", port, token=token, is_member=lambda _: True)
        self.views: dict[EndpointId, View] = {}
        self._news = asyncio.Event()

    @property
    def view(self) -> View:
        return next(iter(self.views.values()), View())

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LogReader"]:
        await self.server.start()
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(self._read())
            try:
                yield self
            finally:
                task.cancel()
                await self.server.close()

    async def _read(self) -> None:
        async for records in self.server.records():
            for record in records:
                self.views.setdefault(parse(record).endpoint, View()).apply(record)
            self._news.set()

    async def until(self, holds: Callable[[View], bool], *, within_s: float = 10.0) -> View:
        """Wait for records after which this holds."""
        async with asyncio.timeout(within_s):
            while not holds(self.view):
                self._news.clear()
                await self._news.wait()
        return self.view


def quick_settings(engine_port: int, state_port: int, **changes: object) -> SidecarSettings:
    """A sidecar that ends quickly, on free ports of loopback."""
    defaults: dict[str, object] = {
        "pool": "default/pool",
        "name": "default/engine-0",
        "host": "127.0.0.1",
        "port": 0,
        "metrics_port": 0,
        "engine_url": f"http://127.0.0.1:{engine_port}",
        "state_url": f"tcp://127.0.0.1:{state_port}",
        "relay": relays.kind,
        "settle_s": 0.0,
        "grace_s": 5.0,
        # Its end waits for a page that its engine has shown since.
        "metrics_interval_s": 0.05,
        "connect_timeout_s": scaled(2.0),
    }
    return SidecarSettings.model_validate({**defaults, **changes})


@asynccontextmanager
async def running_sidecar(settings: SidecarSettings) -> AsyncIterator[Sidecar]:
    """The sidecar as `epp sidecar` runs it, ended by its own stop."""
    stop = asyncio.Event()
    started: asyncio.Future[Sidecar] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as tg:
        tg.create_task(run(settings, stop=stop, started=started))
        try:
            yield await started
        finally:
            stop.set()
