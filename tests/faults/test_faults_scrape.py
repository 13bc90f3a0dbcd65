"""Fault B07: slow, huge and endless metrics pages hurt nobody but themselves."""

import asyncio
import resource
import time
from contextlib import AsyncExitStack

from epp.framework import EndpointId, PoolId
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.scrape import Scraper, ScrapeSettings
from tests.fakes.metrics_port import MetricsPort, page, serving
from tests.timing import scaled

POOL = PoolId("p")


async def test_B07_a_bad_page_delays_no_other_and_memory_stays_flat() -> None:
    """Red with one loop for all endpoints, without the body limit in Scraper._body (memory), or
    without the session's timeout."""
    ports = {mode: MetricsPort() for mode in ("hang", "flood", "trickle")}
    for mode, port in ports.items():
        port.mode = mode
    ports["good"] = MetricsPort(page(num_requests_waiting=1))
    settings = ScrapeSettings(interval_s=0.25, timeout_s=0.2, max_bytes=2 << 20)
    state = PoolState(POOL, Endpoints(), PrefixIndex(10), PredictedIndex(10, 60.0), LoadBook())
    async with AsyncExitStack() as stack:
        for port in ports.values():
            await stack.enter_async_context(serving(port))
        members = [
            Member(
                id=EndpointId(POOL, name, 1),
                address="127.0.0.1:1",
                metrics_url=port.url,
                has_sidecar=False,
            )
            for name, port in ports.items()
        ]
        state.replace(members, time.monotonic())
        scraper = Scraper(state, settings=settings)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running = tasks.create_task(scraper.run())
        await asyncio.sleep(1.0)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        oldest = 0.0
        for _ in range(40):
            await asyncio.sleep(0.05)
            good = next(e for e in state.ready(time.monotonic()) if e.id.name == "good")
            assert good.load.age_s is not None
            oldest = max(oldest, good.load.age_s)
        assert oldest < scaled(2 * settings.interval_s)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # KiB
        assert all(port.most_open <= 2 for port in ports.values())
        assert scraper.counts["timeout"] >= 4
        assert scraper.counts["too-large"] >= 2
        running.cancel()
