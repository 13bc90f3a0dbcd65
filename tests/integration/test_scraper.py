"""Scraping plain engines over real sockets, into the real pool state."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from epp.framework import Endpoint, EndpointId, PoolId
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.scrape import Scraper, ScrapeSettings
from tests.fakes.metrics_port import MetricsPort, page, serving
from tests.timing import scaled

POOL = PoolId("p")
FAST = ScrapeSettings(interval_s=0.1, timeout_s=0.08)


def member(name: str, url: str, engine: str = "") -> Member:
    return Member(
        id=EndpointId(POOL, name, 1),
        address="127.0.0.1:1",
        labels={"llm-d.ai/engine-type": engine} if engine else {},
        metrics_url=url,
        has_sidecar=False,
    )


def new_state(*members: Member) -> PoolState:
    state = PoolState(POOL, Endpoints(), PrefixIndex(100), PredictedIndex(100, 60.0), LoadBook())
    state.replace(members, time.monotonic())
    return state


@asynccontextmanager
async def scraping(state: PoolState, settings: ScrapeSettings = FAST) -> AsyncIterator[Scraper]:
    scraper = Scraper(state, settings=settings, rng=random.Random(1))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(scraper.run())
        try:
            yield scraper
        finally:
            task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(scaled(5)):
        while not condition():  # noqa: ASYNC110 - the condition belongs to somebody else
            await asyncio.sleep(0.01)


def only(state: PoolState) -> Endpoint | None:
    found = state.ready(time.monotonic())
    return found[0] if found else None


def waiting(state: PoolState) -> int | None:
    found = only(state)
    return found.load.waiting if found is not None else None


async def test_a_page_becomes_load_again_and_again_over_one_connection() -> None:
    async with serving(MetricsPort(page(num_requests_waiting=3))) as port:
        state = new_state(member("a", port.url))
        async with scraping(state) as scraper:
            await until(lambda: waiting(state) == 3)
            port.text = page(num_requests_waiting=4)
            await until(lambda: waiting(state) == 4)
            await until(lambda: port.requests >= 5)
            assert port.connections == 1
            assert port.most_open == 1
            assert scraper.active == 1


async def test_a_refused_connection_takes_it_out_until_it_answers() -> None:
    port = MetricsPort(page(num_requests_waiting=0))
    async with serving(port):
        state = new_state(member("a", port.url))
        async with scraping(state):
            await until(lambda: waiting(state) == 0)
    async with scraping(state) as scraper:
        await until(lambda: only(state) is None)
        assert scraper.counts["refused"] >= 1
        async with serving(port):
            await until(lambda: only(state) is not None)


@pytest.mark.parametrize(
    ("mode", "counted"),
    [
        ("error", "status"),
        ("redirect", "status"),
        ("hang", "timeout"),
        ("trickle", "timeout"),
        ("cut", "broken"),
        ("flood", "too-large"),
    ],
)
async def test_other_faults_are_counted_and_take_nobody_out(mode: str, counted: str) -> None:
    port = MetricsPort()
    port.mode = mode
    async with serving(port):
        state = new_state(member("a", port.url))
        limited = ScrapeSettings(interval_s=0.2, timeout_s=0.16, max_bytes=100_000)
        async with scraping(state, limited) as scraper:
            await until(lambda: scraper.counts[counted] >= 2)
            assert only(state) is not None
            assert waiting(state) is None
            assert port.most_open <= 2


async def test_large_pages_are_read_too() -> None:
    text = b"# a comment\n" * 30_000 + page(num_requests_waiting=9)
    async with serving(MetricsPort(text)) as port:
        state = new_state(member("a", port.url))
        async with scraping(state, ScrapeSettings(interval_s=0.5, timeout_s=0.4)):
            await until(lambda: waiting(state) is not None)
            assert waiting(state) == 9


async def test_loops_follow_the_membership() -> None:
    async with (
        serving(MetricsPort(page(num_requests_waiting=1))) as one,
        serving(MetricsPort(page(num_requests_waiting=2))) as two,
    ):
        state = new_state(member("a", one.url))
        async with scraping(state) as scraper:
            await until(lambda: waiting(state) == 1)
            state.replace([member("a", two.url)], time.monotonic())
            await until(lambda: waiting(state) == 2)
            assert scraper.active == 1
            state.replace([], time.monotonic())
            await until(lambda: scraper.active == 0)
            before = two.requests
            await asyncio.sleep(0.25)
            assert two.requests == before


async def test_an_endpoint_is_read_by_the_names_of_its_engine_and_at_its_page() -> None:
    text = b"trtllm_num_requests_waiting 7\nsglang:num_queue_reqs 8\n"
    async with serving(MetricsPort(text)) as port:
        state = new_state(member("a", port.url, "trtllm-serve"))
        async with scraping(state) as scraper:
            await until(lambda: waiting(state) == 7)
            assert port.path == "/prometheus/metrics"
            state.replace([member("a", port.url, "sglang")], time.monotonic())
            await until(lambda: waiting(state) == 8)
            assert port.path == "/metrics"
            assert scraper.active == 1


async def test_large_pages_are_read_by_the_names_of_their_engine_too() -> None:
    text = b"# a comment\n" * 30_000 + b"sglang:num_queue_reqs 8\n"
    async with serving(MetricsPort(text)) as port:
        state = new_state(member("a", port.url, "sglang"))
        async with scraping(state, ScrapeSettings(interval_s=0.5, timeout_s=0.4)):
            await until(lambda: waiting(state) is not None)
            assert waiting(state) == 8


async def test_the_number_of_loops_is_bounded() -> None:
    async with serving(MetricsPort(page(num_requests_waiting=1))) as port:
        state = new_state(*(member(f"m{n}", port.url) for n in range(5)))
        limited = ScrapeSettings(interval_s=0.1, timeout_s=0.08, max_endpoints=3)
        async with scraping(state, limited) as scraper:
            await until(lambda: scraper.counts["pages"] >= 3)
            assert scraper.active == 3
            assert scraper.counts["not-scraped"] >= 2


def test_a_timeout_has_to_be_shorter_than_the_interval() -> None:
    with pytest.raises(ValueError, match="shorter than the interval"):
        ScrapeSettings(interval_s=0.2, timeout_s=0.19)
