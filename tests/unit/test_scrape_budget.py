"""Metrics pages have a budget: a thousand endpoints may fall silent at once."""

import asyncio
from collections import Counter
from random import Random
from types import SimpleNamespace

import pytest

from epp.framework import EndpointId, PoolId
from epp.state.endpoints import ScrapeTarget
from epp.state.scrape import Scraper, ScrapeSettings

SETTINGS = ScrapeSettings(interval_s=0.25, timeout_s=0.2, max_pages_per_s=100.0)


async def read(monkeypatch: pytest.MonkeyPatch, endpoints: int, seconds: float) -> Counter[float]:
    """The pages that are read in each tenth of a second."""
    clock = asyncio.get_running_loop().time
    targets = [
        ScrapeTarget(EndpointId(PoolId("p"), f"e{number}", 1), f"http://e{number}/metrics", {})
        for number in range(endpoints)
    ]
    state = SimpleNamespace(scrape_targets=lambda _: targets)
    scraper = Scraper(state, settings=SETTINGS, clock=clock, rng=Random(3))
    pages: Counter[float] = Counter()

    async def scrape(*_: object) -> None:
        pages[round(clock() - began, 1)] += 1

    monkeypatch.setattr(scraper, "_scrape", scrape)
    began = clock()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scraper.run())
        await asyncio.sleep(seconds)
        running.cancel()
    return pages


@pytest.mark.looptime
async def test_few_endpoints_are_read_at_once_and_as_often_as_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = await read(monkeypatch, 10, 10.0)
    assert pages[0.0] == 10
    assert 370 <= pages.total() <= 430


@pytest.mark.looptime
async def test_many_are_read_within_the_budget_and_never_in_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = await read(monkeypatch, 500, 20.0)
    assert 1_800 <= pages.total() <= 2_200
    assert max(pages.values()) <= 30
