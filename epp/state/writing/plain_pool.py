"""Writes for the engines of a pool that have no sidecar, while this replica is the one elected.

Replicas stand for the lease from the first such engine on that says where its KV events are. The
holder follows all of them, up to a limit, and lets go of all when its lease is over; meanwhile, and
where nobody can be asked whose turn it is, those engines are one step down the ladder. Should two
believe for a moment that it is their turn, the log's own fences let one speak.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Protocol

import aiohttp
import structlog
import zmq.asyncio

from epp.framework import EndpointId
from epp.state.blocks import Naming
from epp.state.endpoints import Endpoints, Member, ScrapeTarget
from epp.state.event_ports import EventPorts, EventSource, source_of
from epp.state.events import Frame
from epp.state.leases import Elector
from epp.state.metrics_page import EngineMetrics
from epp.state.model_pages import read_page
from epp.state.replaying import fetch
from epp.state.served_models import base_on
from epp.state.store import Writer

from .plain import Means, PlainWriter
from .publisher import Tempo, Wrote

MOST = 512
"""Engines that one replica writes for: each is a subscription, a connection to the store, and a
copy of what its cache holds."""
LOOK_S = 0.1
"""Between two looks at the lease and at the members."""
STARTS_AT_ONCE = 16
"""Writers that are started in one look: hundreds of connections to the store, all opened in the
same moment, would all be too late for it."""
REPLAYS_AT_ONCE = 16
"""A replica that was just elected wants one of every engine."""
RESTART_S = 1.0
"""Pause before a writer that failed is started again."""
MODELS_S = 2.0
"""How long an engine may take to say what it serves."""
FAILED = "failed"
"""Word of `happened` for writers that were started again."""
COUNTED = ("frames", "gaps", "restarts", "replays", "failed-replays", "undecodable", "other-ranks")
"""Words of `happened` about the engines' events."""

log = structlog.get_logger(__name__)


class Scraped(Protocol):
    """Who else hears of metrics pages; see `PoolState`."""

    endpoints: Endpoints

    def scrape_targets(self, now: float, /) -> Iterable[ScrapeTarget]: ...
    def scraped(self, endpoint: EndpointId, page: EngineMetrics, now: float, /) -> None: ...
    def scrape_failed(self, endpoint: EndpointId, now: float, /, *, refused: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class _Post:
    """One engine that is written for."""

    writer: PlainWriter
    task: asyncio.Task[None]


class PlainWriters:
    """`run` until cancelled. It stands between the scraper and the pool, whose pages it reads too.

    `happened`: claims, records, snapshots, fenced, store-failures, failed (writers that were
    started again), and words of `COUNTED`; `held`: written, waiting (for the engine, its model or
    the store), left-out (beyond the limit).
    """

    def __init__(
        self,
        pool: Scraped,
        elector: Elector,
        *,
        ports: EventPorts,
        naming: Naming,
        open_writer: Callable[[], Writer],
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
        rng: Random,
        tempo: Tempo | None = None,
        most: int = MOST,
    ) -> None:
        """`ports`: of engines that do not say themselves where their events are."""
        self.elector = elector
        self._pool = pool
        self._ports = ports
        self._naming = naming
        self._open_writer = open_writer
        self._clock = clock
        self._wall_ms = wall_ms
        self._rng = rng
        self._tempo = tempo or Tempo()
        self._most = most
        self._counts: Counter[str] = Counter()
        self._posts: dict[EndpointId, _Post] = {}
        self._replays = asyncio.Semaphore(REPLAYS_AT_ONCE)
        self._version: int | None = None
        self._sources: dict[EndpointId, tuple[str, EventSource]] = {}
        """Address and source of each engine that could be written for, as of that version."""

    @property
    def held(self) -> Mapping[str, int]:
        written = sum(post.writer.writes for post in self._posts.values())
        left_out = max(0, len(self._sources) - self._most) if self.elector.held else 0
        waiting = len(self._posts) - written
        return {"written": written, "waiting": waiting, "left-out": left_out}

    @property
    def happened(self) -> Mapping[str, int]:
        found = Counter(dict.fromkeys((*Wrote, FAILED, *COUNTED), 0))
        found.update(self._counts)
        for post in self._posts.values():
            found.update(_counted(post.writer))
        return found

    async def run(self) -> None:
        """Until cancelled. Decisions go on without it: what fails is counted and begins anew."""
        while not self._wanted():  # noqa: ASYNC110 - members come and go in their own task
            await asyncio.sleep(LOOK_S)
        while True:
            try:
                await self._stand()
            except Exception:  # edge of the task
                self._counts[FAILED] += 1
                log.exception("writing for engines without a sidecar failed")
            await asyncio.sleep(RESTART_S)

    async def _stand(self) -> None:
        with _sockets() as context:
            try:
                async with _asking() as session, asyncio.TaskGroup() as tasks:
                    means = self._means(context, session)
                    tasks.create_task(self.elector.run())
                    while True:
                        self._keep(tasks, means)
                        await asyncio.sleep(LOOK_S)
            finally:
                for endpoint in list(self._posts):
                    self._drop(endpoint)

    # Between the scraper and the pool

    def scrape_targets(self, now: float, /) -> Iterable[ScrapeTarget]:
        return self._pool.scrape_targets(now)

    def scraped(self, endpoint: EndpointId, page: EngineMetrics, now: float, /) -> None:
        self._pool.scraped(endpoint, page, now)
        post = self._posts.get(endpoint)
        if post is not None:
            post.writer.page(page.start_ms)

    def scrape_failed(self, endpoint: EndpointId, now: float, /, *, refused: bool) -> None:
        self._pool.scrape_failed(endpoint, now, refused=refused)
        post = self._posts.get(endpoint)
        if post is not None and refused:
            post.writer.refused()

    # Mechanics

    def _wanted(self) -> dict[EndpointId, tuple[str, EventSource]]:
        """Engines that could be written for, in the order of the members."""
        endpoints = self._pool.endpoints
        if endpoints.version != self._version:
            self._version = endpoints.version
            self._sources = dict(_sources(endpoints, self._ports))
        return self._sources

    def _keep(self, tasks: asyncio.TaskGroup, means: Means) -> None:
        """Those that should be written for are, and no others."""
        wanted = self._wanted() if self.elector.held else {}
        chosen = dict(list(wanted.items())[: self._most])
        for endpoint, post in list(self._posts.items()):
            if chosen.get(endpoint) != (post.writer.address, post.writer.source):
                self._drop(endpoint)
        new = [endpoint for endpoint in chosen if endpoint not in self._posts]
        for endpoint in new[:STARTS_AT_ONCE]:
            life = self._pool.endpoints.incarnation(endpoint)
            known_ms = 0 if life is None else life.start_ms
            writer = PlainWriter(endpoint, *chosen[endpoint], means, known_ms=known_ms)
            work = self._supervised(endpoint, writer)
            self._posts[endpoint] = _Post(writer, tasks.create_task(work))

    def _drop(self, endpoint: EndpointId) -> None:
        post = self._posts.pop(endpoint)
        post.task.cancel()
        self._counts.update(_counted(post.writer))

    async def _supervised(self, endpoint: EndpointId, writer: PlainWriter) -> None:
        while True:
            try:
                return await writer.run()
            except Exception:  # edge of the task
                self._counts[FAILED] += 1
                log.exception("writing for an engine failed", endpoint=str(endpoint))
            await asyncio.sleep(RESTART_S)

    def _means(self, context: zmq.asyncio.Context, session: aiohttp.ClientSession) -> Means:
        return Means(
            open_writer=self._open_writer,
            ask_model=lambda address: _base_model(session, address),
            fetch=self._fetch,
            context=context,
            naming=self._naming,
            count=lambda what: self._counts.update((what,)),
            clock=self._clock,
            wall_ms=self._wall_ms,
            rng=self._rng,
            tempo=self._tempo,
        )

    async def _fetch(self, endpoint: str, start: int) -> AsyncGenerator[Frame, None]:
        async with self._replays, aclosing(fetch(endpoint, start)) as frames:
            async for frame in frames:
                yield frame


def _sources(
    members: Iterable[Member], ports: EventPorts
) -> Iterator[tuple[EndpointId, tuple[str, EventSource]]]:
    for member in members:
        source = None if member.has_sidecar else source_of(member.address, member.events, ports)
        if source is not None:
            yield member.id, (member.address, source)


def _counted(writer: PlainWriter) -> dict[str, int]:
    mirror = writer.mirror
    sequence, counts = mirror.sequence, mirror.counts
    return {
        "frames": counts.frames,
        "gaps": sequence.gaps,
        "restarts": sequence.restarts,
        "replays": sequence.replays,
        "failed-replays": sequence.failed_replays + sequence.overflows,
        "undecodable": counts.undecodable,
        "other-ranks": counts.other_ranks,
    }


@contextmanager
def _sockets() -> Iterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    try:
        yield context
    finally:
        context.destroy(linger=0)


def _asking() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=REPLAYS_AT_ONCE),
        timeout=aiohttp.ClientTimeout(total=MODELS_S),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def _base_model(session: aiohttp.ClientSession, address: str) -> str | None:
    _, page = await read_page(session, f"http://{address}/v1/models")
    try:
        return base_on(page)
    except ValueError:
        return None
