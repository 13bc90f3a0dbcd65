"""Read the metrics pages of engines whose sidecar is absent or silent; a shell of `PoolState`.

Each endpoint has a loop of its own, so that a slow page delays nobody else's (fault B07). A scrape
is cut off before the next one is due, a page is read no further than its limit, and two scrapes of
one endpoint never overlap. Failures are counted; only a refused connection takes an endpoint out.

A thousand endpoints may fall silent at once, when the store goes. So pages have a budget: where it
is short each page is read more seldom, and the loops are spread over the longer interval.

Each page is read by the names of the endpoint's own engine, which its labels tell. Numbers that an
engine should tell and does not are told once for each endpoint (fault B04).
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urljoin

import aiohttp

from epp.framework import EndpointId
from epp.framework.engines import PAGE, EngineNames, Engines

from .endpoints import ScrapeTarget
from .metrics_page import MAX_PAGE_BYTES, EngineMetrics, PageError, parse_page

_LEAVE_LOOP_BYTES = 256 << 10
"""Larger pages are parsed in a thread."""
_PATIENCE = 4
"""Pages after which a number that none of them had is missed: an engine may just have started."""

EngineOf = Callable[[Mapping[str, str]], EngineNames]
"""The engine of an endpoint with these labels."""
Missed = Callable[[EndpointId, str, str, tuple[str, ...]], None]
"""Told of an endpoint, its engine, the address of its page and the numbers that are not on it."""


class ScrapedState(Protocol):
    """What the scraper needs of `PoolState`."""

    def scrape_targets(self, now: float, /) -> Iterable[ScrapeTarget]: ...
    def scraped(self, endpoint: EndpointId, page: EngineMetrics, now: float, /) -> None: ...
    def scrape_failed(self, endpoint: EndpointId, now: float, /, *, refused: bool) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeSettings:
    interval_s: float = 0.25
    timeout_s: float = 0.2
    """Shorter than the interval, so that scrapes of one endpoint never overlap."""
    jitter: float = 0.1
    """Share of the interval by which a wait varies, so that loops do not march in step."""
    max_bytes: int = MAX_PAGE_BYTES
    max_endpoints: int = 1024
    max_pages_per_s: float = 400.0
    """Of all endpoints together: reading one takes about half a millisecond of CPU."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < self.interval_s * (1 - self.jitter):
            raise ValueError("a scrape's timeout must be shorter than the interval less its jitter")


@dataclass(frozen=True, slots=True)
class _Page:
    """What one loop reads; another address or other names are another loop."""

    endpoint: EndpointId
    url: str
    engine: str
    names: EngineNames = field(compare=False)


class Scraper:
    """`run` until cancelled. `counts` has pages, refusals, timeouts and other faults."""

    def __init__(
        self,
        state: ScrapedState,
        *,
        settings: ScrapeSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        engine_of: EngineOf | None = None,
        missed: Missed = lambda *_: None,
    ) -> None:
        self.settings = settings or ScrapeSettings()
        self.counts: Counter[str] = Counter()
        self._state = state
        self._clock = clock
        self._rng = rng or random.Random()
        self._engine_of = engine_of or Engines().of
        self._missed = missed
        self._loops: dict[_Page, asyncio.Task[None]] = {}

    @property
    def active(self) -> int:
        """Endpoints that are scraped just now."""
        return len(self._loops)

    @property
    def interval_s(self) -> float:
        """Between two pages of one endpoint: as set, longer where the budget is short."""
        return max(self.settings.interval_s, len(self._loops) / self.settings.max_pages_per_s)

    async def run(self) -> None:
        settings = self.settings
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=2, keepalive_timeout=10)
        timeout = aiohttp.ClientTimeout(total=settings.timeout_s)
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                self._follow(session, tasks)
                await asyncio.sleep(settings.interval_s)

    def _follow(self, session: aiohttp.ClientSession, tasks: asyncio.TaskGroup) -> None:
        """One loop for each target, none for anybody else."""
        wanted = [self._page(target) for target in self._state.scrape_targets(self._clock())]
        if len(wanted) > self.settings.max_endpoints:
            self.counts["not-scraped"] += len(wanted) - self.settings.max_endpoints
            wanted = wanted[: self.settings.max_endpoints]
        for key in self._loops.keys() - set(wanted):
            self._loops.pop(key).cancel()
        for key in wanted:
            if key not in self._loops:
                self._loops[key] = tasks.create_task(self._loop(session, key))

    def _page(self, target: ScrapeTarget) -> _Page:
        names = self._engine_of(target.labels)
        url = target.url if names.page == PAGE else urljoin(target.url, names.page)
        return _Page(target.endpoint, url, names.name, names)

    async def _loop(self, session: aiohttp.ClientSession, page: _Page) -> None:
        settings = self.settings
        names = page.names
        told = {"waiting": names.waiting, "running": names.running, "kv_usage": names.kv_usage}
        unseen = {number for number, specs in told.items() if specs}
        pages = 0
        if self.interval_s > settings.interval_s:
            await asyncio.sleep(self.interval_s * self._rng.random())
        while True:
            began = self._clock()
            found = await self._scrape(session, page)
            if found is not None and pages < _PATIENCE:
                pages += 1
                unseen = {number for number in unseen if getattr(found.report, number) is None}
                if pages == _PATIENCE and unseen:
                    self._missed(page.endpoint, page.engine, page.url, tuple(sorted(unseen)))
            every = self.interval_s * (1 + settings.jitter * self._rng.uniform(-1, 1))
            await asyncio.sleep(max(0.0, began + every - self._clock()))

    async def _scrape(self, session: aiohttp.ClientSession, page: _Page) -> EngineMetrics | None:
        endpoint, most = page.endpoint, self.settings.max_bytes
        try:
            async with session.get(page.url, allow_redirects=False) as answer:
                if answer.status != 200:
                    self._failed(endpoint, "status")
                    return None
                text = await self._body(answer)
            if len(text) > _LEAVE_LOOP_BYTES:
                found = await asyncio.to_thread(parse_page, text, most, page.names)
            else:
                found = parse_page(text, most, page.names)
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            self._failed(endpoint, "refused" if refused else "unreachable", refused=refused)
        except TimeoutError:
            self._failed(endpoint, "timeout")
        except PageError:
            self._failed(endpoint, "too-large")
        except (aiohttp.ClientError, OSError, ValueError):
            self._failed(endpoint, "broken")
        else:
            self.counts["pages"] += 1
            self._state.scraped(endpoint, found, self._clock())
            return found
        return None

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in answer.content.iter_any():
            size += len(piece)
            if size > self.settings.max_bytes:
                raise PageError(f"metrics page of more than {self.settings.max_bytes} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    def _failed(self, endpoint: EndpointId, why: str, *, refused: bool = False) -> None:
        self.counts[why] += 1
        self._state.scrape_failed(endpoint, self._clock(), refused=refused)
