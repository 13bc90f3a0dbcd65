"""The sidecar as a whole: builds the parts, owns the tasks and the order of shutdown.

On SIGTERM or SIGINT it says "not ready" at once (to gateways, kubelet and log), is drained (see
`draining`), says its last words to the log, and ends. A second signal ends it at once.
"""

import asyncio
import gc
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any

import structlog

from epp.errors import CannotListen
from epp.framework import EndpointId
from epp.state.store import Writer
from epp.state.store.open import open_writer
from epp.state.writing.following import Following
from epp.state.writing.publisher import Publisher
from epp.tracing.queue import open_queue
from epp.tracing.spans import Tracer

from . import gauges
from .built import is_compiled
from .draining import Drain
from .engine import EngineWatch
from .guard import Guard
from .http.measuring import Measuring
from .metrics import Metrics
from .pages import Pages
from .proxy import Relay
from .settings import SidecarSettings
from .state.reporter import Reporter
from .state.wiring import following_of, mirror_of
from .transfer.files import Followed
from .transfer.tracing import CONNECTOR
from .trust.certificates import Certificates
from .wiring import (
    Clocks,
    door_of,
    followed,
    relay_of,
    say_whether_legs_are_on,
    trust_of,
)

LAST_WORDS_S = 1.0
"""How long the log may take to hear the last words."""
GC_THRESHOLDS = (5_000, 5, 5)
"""Objects made in excess of those let go before a look, and looks before a deeper one."""
RESTART_S = 1.0
"""Pause before a background task that failed is started again."""

log = structlog.get_logger(__name__)


async def run(
    settings: SidecarSettings,
    *,
    stop: asyncio.Event | None = None,
    started: "asyncio.Future[Sidecar] | None" = None,
) -> None:
    """Run one sidecar, or one for each rank, until SIGTERM or SIGINT, or until `stop` is set.

    With `stop` no signal handlers are installed, so that several can share a process. `started`
    gets the running sidecar, of rank 0. Raises OSError when a port is taken, ConfigError for a bad
    store URL.
    """
    sidecars = [Sidecar(one) for one in settings.ranks]
    for one in sidecars:
        one.drain_pod = partial(_drained, sidecars)
    asked, insisted = stop or asyncio.Event(), asyncio.Event()
    # Before anything listens: a signal in the first moments is a polite one, too.
    with nullcontext() if stop is not None else _signals(asked, insisted):
        async with AsyncExitStack() as stack:
            for one in sidecars:
                await stack.enter_async_context(one.running())
            if started is not None:
                started.set_result(sidecars[0])
            if stop is None:
                _settle_memory()
            await asked.wait()
            async with asyncio.TaskGroup() as tg:
                draining = tg.create_task(_drained(sidecars))
                hurrying = tg.create_task(insisted.wait())
                await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
                draining.cancel()
                hurrying.cancel()


async def _drained(sidecars: Sequence["Sidecar"]) -> int:
    return sum(await asyncio.gather(*(one.drain() for one in sidecars)))


def _settle_memory() -> None:
    """What the start has made lasts, and requests make few cycles: look through neither often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


@contextmanager
def _signals(asked: asyncio.Event, insisted: asyncio.Event) -> Iterator[None]:
    """The first SIGTERM or SIGINT asks, the next one insists."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def signalled() -> None:
        event = insisted if asked.is_set() else asked
        event.set()

    for number in numbers:
        loop.add_signal_handler(number, signalled)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


class Sidecar:
    """One sidecar. `running` it serves; `drain` before leaving ends it without cutting answers."""

    def __init__(
        self,
        settings: SidecarSettings,
        *,
        open_log: Callable[[], Writer] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        rng: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._wall_s = lambda: wall_ms() / 1000
        self._rng = rng or random.Random()
        token = settings.state_token
        self._open_log = open_log or (
            lambda: open_writer(
                settings.state_url,
                settings.pool_id,
                token.get_secret_value() if token is not None else None,
                password_file=settings.state_password_file,
                ca_file=settings.state_ca_file,
                streams=settings.state_streams,
            )
        )
        self.metrics = Metrics()
        self.reporter = Reporter(self.metrics, mirror_of(settings, clock))
        self.certificates = Certificates.of(settings)
        self.engine = EngineWatch(
            settings,
            self.reporter,
            clock=clock,
            wall_ms=wall_ms,
            tls=self.certificates.outward.engine,
        )
        self.door = door_of(settings)
        self.trust = trust_of(settings, self.door.guard, self.metrics.handoff)
        self._spans = open_queue(settings.trace_endpoint, "epp-sidecar")
        self._relay, self._warming = relay_of(
            settings,
            self.door,
            self.trust,
            self.certificates,
            journal=self.reporter,
            refusing=self.reporter.not_ready,
            metrics=self.metrics.handoff,
            encoding=self.metrics.encoding,
            measuring=Measuring(
                metrics=self.metrics.answers,
                served=lambda: self.engine.served,
                request_usage=settings.request_usage,
            ),
            tracer=Tracer(
                rng=self._rng,
                wall_s=self._wall_s,
                share=settings.trace_share,
                attributes={CONNECTOR: settings.connector},
                listener=self._spans,
            ),
            clocks=Clocks(monotonic_s=clock, wall_s=self._wall_s),
        )
        self._draining = Drain(
            begun=self.reporter.drain,
            work=self._relay,
            blocks=self.engine,
            settle_s=settings.settle_s,
            grace_s=settings.grace_s,
            clock=clock,
        )
        self._drained: asyncio.Task[int] | None = None
        self.drain_pod: Callable[[], Awaitable[int]] = self.drain
        """Drains all sidecars of the pod: each rank of an engine is one, and it ends as a whole."""
        self._following: Following | None = None
        self._recalled = asyncio.Event()
        """Whether an earlier sidecar left a memory of the engine's life is known."""
        gauges.of_relay(self.metrics, self._relay, self.guard, self.engine)
        gauges.of_state(self.metrics, self.reporter, lambda: self._following)
        if self._spans is not None:
            gauges.of_spans(self.metrics, self._spans)
        self.port = settings.port
        """Of the proxy; known once it runs."""
        self.metrics_port = settings.metrics_port

    @property
    def relay(self) -> Relay:
        return self._relay

    @property
    def guard(self) -> Guard:
        """Who belongs to the pool."""
        return self.door.guard

    @property
    def leg_port(self) -> int | None:
        """Where prefill legs are taken without a key; None when they are not."""
        return self._relay.leg_port

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Sidecar"]:
        """Serve inside this context. On leaving, what is still in flight is cut."""
        await self._open_log().close()  # a bad URL is told before anything listens
        say_whether_legs_are_on(self._settings, self.door, self.trust)
        self.port = await self._listening()
        try:
            async with self._metrics_page(), asyncio.TaskGroup() as tg:
                publisher = self._publisher()
                self.reporter.attach(self.engine, publisher.wake)
                self._tasks = tg
                self.metrics.connected.set_function(lambda: publisher.stands)
                watch = [tg.create_task(self._supervise("engine", self.engine.run))]
                if self._settings.kv_events is not None:
                    watch.append(tg.create_task(self._supervise("events", self._follow)))
                if self._warming is not None:
                    watch.append(tg.create_task(self._supervise("warming", self._warming.run)))
                files = followed(self._settings, self.door, self.trust, self.port)
                if self._spans is not None:
                    watch.append(tg.create_task(self._supervise("traces", self._spans.run)))
                for name, file in (files | self.certificates.followed()).items():
                    watch.append(tg.create_task(self._supervise(name, partial(self._keep, file))))
                writing = tg.create_task(self._supervise("publisher", publisher.run))
                log.info(
                    "sidecar listens",
                    port=self.port,
                    metrics_port=self.metrics_port,
                    compiled=is_compiled(),
                )
                try:
                    yield self
                finally:
                    await self._relay.close()
                    publisher.stop()
                    await self._last_words(writing)
                    for task in (*watch, writing, *filter(None, (self._drained,))):
                        task.cancel()
        finally:
            await self._relay.close()

    async def _listening(self) -> int:
        """Start the relay; gives its port. Raises CannotListen."""
        settings = self._settings
        ports, flags = [settings.port], ["--port"]
        if settings.leg_port is not None:
            ports, flags = [*ports, settings.leg_port], [*flags, "--leg-port"]
        try:
            return await self._relay.start()
        except OSError as error:
            at = f"{settings.host or '*'}:{' or '.join(map(str, ports))}"
            raise CannotListen("requests", at, error, " or ".join(flags)) from error

    async def _last_words(self, writing: "asyncio.Task[None]") -> None:
        told = asyncio.wait({writing}, timeout=LAST_WORDS_S)
        if self._spans is None:
            await told
        else:
            await asyncio.gather(told, self._spans.close(LAST_WORDS_S))

    async def drain(self) -> int:
        """Take nothing new, and wait until what has begun is over, or the grace.

        Whoever asks again waits for the same. Returns the exchanges that are left.
        """
        if self._drained is None:
            self._drained = self._tasks.create_task(self._draining.run())
        return await asyncio.shield(self._drained)

    def _publisher(self) -> Publisher:
        settings = self._settings
        return Publisher(
            EndpointId(settings.pool_id, settings.name, self.port),
            settings.tempo,
            outbox=self.reporter.outbox,
            kept=self.reporter.kept,
            resume=self.reporter.resume,
            recalled=self._recalled,
            status=self.reporter.status,
            start_ms=self.reporter.start_ms,
            open_writer=self._open_log,
            count=self.metrics.wrote,
            clock=self._clock,
            rng=self._rng,
        )

    async def _follow(self) -> None:
        """Take KV events. Until the model is known, and what an earlier sidecar knew of this life,
        they wait in the socket's own queue."""
        self._following = following_of(self._settings, self.reporter)
        await self._following.run(self.engine.model_known, self._recalled)

    async def _keep(self, file: Followed[Any]) -> None:
        """Keep to what a file says."""
        interval_s = self._settings.endpoints_interval_s
        await file.run(interval_s, self.metrics.files_refused.inc)

    async def _supervise(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """A background task that fails is counted and started again; requests pass meanwhile."""
        while True:
            try:
                return await work()
            except Exception:  # edge of the task
                self.metrics.task_failures.labels(name).inc()
                log.exception("a background task failed", task=name)
            await asyncio.sleep(RESTART_S)

    @asynccontextmanager
    async def _metrics_page(self) -> AsyncIterator[None]:
        """The pages for operators."""
        pages = Pages(self.metrics.registry, self._wall_s, self.drain_pod)
        host, port = self._settings.host, self._settings.metrics_port
        try:
            self.metrics_port = await pages.start(host, port)
        except OSError as error:
            raise CannotListen(
                "metrics", f"{host or '*'}:{port}", error, "--metrics-port"
            ) from error
        try:
            yield
        finally:
            pages.close()
