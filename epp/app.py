"""Composition root of `epp serve`: builds the parts, owns the TaskGroup and the order of shutdown.

Start: configuration and membership first (a bad file stops us with its line and column; Kubernetes
may take its time), then the ports, then readiness. Stop: readiness goes first, what gateways still
send is served until they have noticed, live streams finish up to the drain time, then the tasks
end.
"""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog
import uvloop

from epp import listening, readiness
from epp.config.serve import ServeSettings
from epp.deciding import director_of, traced
from epp.errors import ConfigError
from epp.observe import logs
from epp.observe.health import Health, serve_health
from epp.picker import Picker, clock, tell_notes
from epp.request.exchange import Director
from epp.request.offload import Offload
from epp.request.traced import Heard
from epp.request.transport import grpc as transport
from epp.request.transport import tls
from epp.request.transport.certificate import Certificate
from epp.request.transport.limits import TransportLimits
from epp.served import Served, served
from epp.stores import Place
from epp.tracing.queue import open_queue

QUIET_S = 2.0
"""Gateways that open no stream for so long have noticed that we are leaving, or never came."""
NOTICE_S = 5.0
"""How long new streams are served at most while gateways notice: two or three of their checks."""
LAST_WORDS_S = 1.0
"""How long the collector of traces may take for what is left in the end."""
GC_THRESHOLDS = (20_000, 20, 20)
"""See `gc.set_threshold`."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports that were bound; tests ask for port 0."""

    grpc: int
    health: int
    metrics: int
    admin: int
    state: int | None


async def serve(
    settings: ServeSettings,
    *,
    started: Callable[[Ports], None] = lambda _: None,
    stop: asyncio.Event | None = None,
    place: Place | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`. `place`: as one of several workers, with its pages on
    loopback. Raises EppError when it cannot start."""
    owns_process, stop = stop is None, stop or asyncio.Event()
    what = served(settings, place)
    for picker in what.pickers:
        tell_notes(picker.live.built)
        picker.load_members()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    health = Health()
    async with _parts(what, health, alone=place is None) as (shell, ports):
        bound = {name: getattr(ports, name) for name in Ports.__slots__}
        if place is None:
            log.info("serving", **bound)
        else:
            await readiness.soon(what.pickers[0], stop)
            log.info("worker serves", worker=place.number, **bound)
        started(ports)
        ready = readiness.Ready(what.pickers, health)
        await ready.begin(stop)
        if owns_process:
            _settle_memory()
        async with listening.task_group() as tasks:
            tasks.create_task(ready.keep())
            await stop.wait()
        await _leave(health, shell, settings.drain_timeout_s)
    log.info("stopped")


def _settle_memory() -> None:
    """What the start has made lasts, and answered requests leave no cycles: a look through all of
    it would hold up every stream for a tenth of a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _leave(health: Health, shell: transport.ExtProcServer, drain_s: float) -> None:
    """Not ready at once; then no new stream, within `drain_s` in all no stream any more (A21)."""
    began = clock()
    health.leave()
    log.info("leaving", live_streams=shell.counts.live, limit_s=drain_s)
    await shell.quiet(QUIET_S, min(NOTICE_S, drain_s))
    log.info("draining", live_streams=shell.counts.live)
    await shell.drain(max(0.0, began + drain_s - clock()))


@asynccontextmanager
async def _parts(
    what: Served, health: Health, *, alone: bool
) -> AsyncIterator[tuple[transport.ExtProcServer, Ports]]:
    """Everything that runs, in the order in which it must start; it stops in reverse."""
    settings = what.settings
    async with AsyncExitStack() as stack:
        for picker in what.pickers:
            await picker.ways.start()
            stack.push_async_callback(picker.ways.close)
        spans, heard = open_queue(settings.trace_endpoint, "epp-picker"), Heard()
        if spans is not None:
            what.metrics.spans = spans
            stack.push_async_callback(spans.close, LAST_WORDS_S)
        offload = what.metrics.offload = stack.enter_context(Offload())
        for picker in what.pickers:
            picker.members.open()
            stack.push_async_callback(picker.members.close)
        session = await stack.enter_async_context(listening.client())
        tasks = await stack.enter_async_context(listening.task_group())
        also = () if spans is None else (heard,)
        directors = [
            director_of(picker, session, offload, tasks.create_task, also=also)
            for picker in what.pickers
        ]
        director = what.director(directors)
        if spans is not None:
            tasks.create_task(spans.run())
            director = traced(director, heard, spans, settings.trace_share)
        serving = _ext_proc(what, director, health, tasks, alone=alone)
        shell = await stack.enter_async_context(serving)
        host = settings.host if alone else "127.0.0.1"
        health_port = await stack.enter_async_context(
            serve_health(health, host=host, port=settings.grpc_health_port)
        )
        metrics = await stack.enter_async_context(
            listening.pages(what.numbers(), host, settings.metrics_port, "metrics")
        )
        debug_port = await stack.enter_async_context(
            listening.pages(
                what.pages(directors), settings.admin_host, settings.admin_port, "admin"
            )
        )
        for picker in what.pickers:
            _start(picker, tasks)
        yield (
            shell,
            Ports(
                grpc=shell.port,
                health=health_port,
                metrics=metrics,
                admin=debug_port,
                state=what.pickers[0].ways.state_port,
            ),
        )


def _start(picker: Picker, tasks: asyncio.TaskGroup) -> None:
    """What keeps one pool as it is."""
    for work in (
        picker.members.run,
        picker.tick,
        picker.look,
        picker.scraper.run,
        picker.model_pages.run,
    ):
        tasks.create_task(work())
    for stream in picker.ways.reader.streams:
        tasks.create_task(picker.follow_log(stream))
    for part in (
        picker.reload,
        picker.objectives_reload,
        picker.seal_reload,
        picker.sharing,
        picker.plain,
    ):
        if part is not None:
            tasks.create_task(part.run())


@asynccontextmanager
async def _ext_proc(
    what: Served, director: Director, health: Health, tasks: asyncio.TaskGroup, *, alone: bool
) -> AsyncIterator[transport.ExtProcServer]:
    """The gateways' port, which is shared with other workers unless we are alone.

    Raises ConfigError for a certificate that cannot work.
    """
    settings, metrics = what.settings, what.metrics
    credentials = None
    if settings.secure_serving and settings.cert_path and settings.enable_cert_reload:
        certificate = metrics.certificate = Certificate(settings.cert_path)
        credentials = certificate.credentials()
        tasks.create_task(certificate.follow(_certificate_changed))
    elif settings.secure_serving:
        credentials = tls.server_credentials(settings.cert_path)
    serving = transport.serve(
        director,
        host=settings.host,
        port=settings.grpc_port,
        credentials=credentials,
        limits=TransportLimits(
            max_request_bytes=settings.max_request_bytes,
            max_total_bytes=settings.max_total_bytes,
            max_recv_bytes=settings.grpc_max_recv_msg_size,
            max_send_bytes=settings.grpc_max_send_msg_size,
        ),
        shared=not alone,
        several_pools=what.several,
        handlers=[health.handler()],
        on_end=metrics.time_streams() if settings.enable_grpc_stream_metrics else None,
    )
    async with serving as shell:
        metrics.streams = shell.counts
        yield shell


def _certificate_changed(error: ConfigError | None) -> None:
    if error is None:
        log.info("certificate renewed")
    else:
        log.error("new certificate refused, the old one stays", error=str(error))


def run(
    settings: ServeSettings,
    *,
    started: Callable[[Ports], None] = lambda _: None,
    place: Place | None = None,
) -> None:
    """`serve` in an event loop of its own, with logs as the settings say."""
    logs.configure(settings.log_level, settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, started=started, place=place))
