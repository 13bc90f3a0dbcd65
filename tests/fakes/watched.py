"""A director that is watched as in `epp serve`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from epp.framework import Role
from epp.observe.explain import Explain
from epp.observe.metrics import Metrics, Sources
from epp.request.transport.grpc import StreamCounts
from tests.fakes.desk import Desk, open_desk


@asynccontextmanager
async def watched(
    count: int = 2, roles: Sequence[Role] = ()
) -> AsyncIterator[tuple[Desk, Metrics, Explain]]:
    """A desk whose director is watched as in `epp serve`."""
    async with open_desk(count, roles=roles) as desk:
        streams = StreamCounts(started=5, live=2, routed=3)
        streams.aborted["UNAVAILABLE"] = 1
        sources = Sources(
            pool=desk.pool,
            streams=streams,
            tokens=desk.tokens,
            offload=desk.offload,
            switch=desk.switch,
        )
        metrics = Metrics(version="1.2", sources=sources)
        explain = Explain(wall=lambda: 1_700_000_000.0, replica="epp-0")
        desk.pool.on_done.append(metrics.done)
        desk.director._observers = (metrics, explain)
        desk.director._meters = metrics.meters
        yield desk, metrics, explain
