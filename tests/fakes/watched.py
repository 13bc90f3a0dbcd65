"""A director that is watched as in `epp serve`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from epp.admin_port import preview_by
from epp.framework import Role
from epp.observe import admin
from epp.observe.explain import Explain
from epp.observe.metrics import Metrics, Sources
from epp.observe.process import ProcessMetrics
from epp.observe.state_numbers import StateNumbers
from epp.request.plan.live import Built
from epp.request.tokens import Tokenizer
from epp.request.transport.grpc import StreamCounts
from tests.fakes.desk import Desk, open_desk


@asynccontextmanager
async def watched(
    count: int = 2,
    roles: Sequence[Role] = (),
    built: Built | None = None,
    tokenizer: Tokenizer | None = None,
) -> AsyncIterator[tuple[Desk, Metrics, Explain]]:
    """A desk whose director is watched as in `epp serve`."""
    async with open_desk(count, roles=roles, built=built, tokenizer=tokenizer) as desk:
        sources = Sources(
            pool=desk.pool,
            tokens=desk.tokens,
            switch=desk.switch,
        )
        metrics = Metrics(sources=sources)
        explain = Explain(wall=lambda: 1_700_000_000.0, replica="epp-0")
        desk.pool.on_done.append(metrics.done)
        desk.director._observers = (metrics, explain)
        desk.director._meters = metrics.meters
        yield desk, metrics, explain


def process_of(desk: Desk) -> ProcessMetrics:
    """The numbers of a process with this desk, which has served streams."""
    process = ProcessMetrics(version="1.2")
    process.streams = streams = StreamCounts(started=5, live=2, routed=3)
    streams.aborted["UNAVAILABLE"] = 1
    process.offload = desk.offload
    return process


@asynccontextmanager
async def admin_pages(
    desk: Desk, explain: Explain, *, token: str | None = None
) -> AsyncIterator[str]:
    """The base URL of the desk's admin port."""
    app = admin.admin_app(
        explain=explain,
        pool=desk.pool,
        switch=desk.switch,
        clock=desk.clock,
        preview=preview_by(desk.director),
        numbers=StateNumbers(),
        token=token,
        max_probe_bytes=10_000,
    )
    async with admin.serve(app, "127.0.0.1", 0) as port:
        yield f"http://127.0.0.1:{port}"
