"""Composition root of `epp serve`: builds the parts, owns the TaskGroup and the order of shutdown.

Start: configuration and membership first (a bad file stops us with its line and column), then the
ports, then readiness. Stop: readiness goes first, what gateways still send is served until they
have noticed, live streams finish up to the drain time, then the tasks end.
"""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version

import aiohttp
import structlog
import uvloop

from epp import listening
from epp.admin_port import admin_port
from epp.config.serve import LEAST_REFRESH_S, ServeSettings
from epp.control import files, objectives
from epp.control.reload import Reload
from epp.errors import ConfigError
from epp.framework import EndpointId, PoolId, Role
from epp.observe import admin, logs
from epp.observe.alarm import SplitAlarm
from epp.observe.explain import Explain
from epp.observe.health import Health, serve_health
from epp.observe.metrics import Metrics
from epp.request.admin_token import AdminToken
from epp.request.apis.catalog import Rules
from epp.request.ballot import Ballot
from epp.request.director import PickDirector, PickSettings
from epp.request.objectives import LiveObjectives, Objectives
from epp.request.offload import Offload
from epp.request.plan import feeds
from epp.request.plan.live import Built, LivePlan, unfollowed
from epp.request.plan.source import PlanSource
from epp.request.profiles import ModeSwitch
from epp.request.replica import new_ids, short_name
from epp.request.tokenizer import EngineTokenizer
from epp.request.tokens import Spawn, Tokens
from epp.request.transport import grpc as transport
from epp.request.transport import tls
from epp.request.transport.certificate import Certificate
from epp.request.transport.limits import TransportLimits
from epp.state.endpoints import Endpoints
from epp.state.load import LoadBook, LoadRules
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.scrape import Scraper, ScrapeSettings
from epp.state.store import Reader
from epp.state.store.memory import StateServer
from epp.state.store.redis import RedisReader

TICK_S = 0.1
APPLY_AT_ONCE_S = 0.002
"""Time spent on applying records before other tasks get their turn (fault A20)."""
INDEX_BLOCKS = 1_000_000
"""Own blocks of one endpoint: 64 million tokens, beyond any engine's memory."""
PREDICTED_BLOCKS = 500_000
PREDICTED_TTL_S = 300.0
QUIET_S = 2.0
"""Gateways that open no stream for so long have noticed that we are leaving, or never came."""
NOTICE_S = 5.0
"""How long new streams are served at most while gateways notice: two or three of their checks."""

log = structlog.get_logger(__name__)
clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports that were bound; tests ask for port 0."""

    grpc: int
    health: int
    metrics: int
    admin: int
    state: int | None


class Picker:
    """The parts of one replica that live as long as the process does."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.pool_id = PoolId(settings.pool_name)
        self.pool = PoolState(
            self.pool_id,
            Endpoints(),
            PrefixIndex(INDEX_BLOCKS),
            PredictedIndex(PREDICTED_BLOCKS, PREDICTED_TTL_S),
            LoadBook(LoadRules(stale_s=settings.metrics_staleness_threshold_s)),
        )
        self.switch = ModeSwitch(settings.mode)
        self.admin_token = settings.admin_token()
        source = PlanSource.of(settings)
        text = source.read()
        self.live = LivePlan(source.built(text))
        self.reload: Reload[Built] | None = None
        if settings.config_file is not None:
            self.reload = Reload(
                settings.config_file,
                text=text,
                build=lambda changed: source.built(changed, self.live.built),
                swap=self._swap,
            )
        every_s = feeds.page_interval_s(self.live.built) or settings.refresh_metrics_interval_s
        every_s = max(LEAST_REFRESH_S, every_s)
        self.scraper = Scraper(
            self.pool,
            settings=ScrapeSettings(interval_s=every_s, timeout_s=min(1.0, 0.8 * every_s)),
            engine_of=feeds.engine_of(self.live.built),
            missed=_warn_page,
        )
        self.health = Health()
        self.explain = Explain(
            wall=lambda: time.time_ns() / 1e9, replica=short_name(settings.pod_name)
        )
        self.alarm = SplitAlarm(has_roles=self._has_roles, clock=clock)
        self.metrics = Metrics(version=version("gie-epp"), namespace=settings.pool_namespace)
        self.pool.on_done.append(self.metrics.done)
        self.ballot = Ballot(clock=clock, cpu=time.thread_time, failed=self.metrics.plugin_failed)
        self.pool.on_removed.append(self._tell_removed)
        self.reader = self._reader()
        self._rng = random.Random()
        self.objectives = LiveObjectives(self._rng)
        self.objectives_reload = objectives.follow(
            settings.objectives_file, self.pool_id, make=Objectives.of, swap=self.objectives.swap
        )

    def load_members(self) -> None:
        """Read the endpoints file for the first time. Raises ConfigError."""
        path = self.settings.endpoints_file
        members = files.load_endpoints(path, self.pool_id, warn=_warn_file)
        self.pool.replace(members, clock())
        log.info(
            "pool loaded",
            pool=self.pool_id,
            namespace=self.settings.pool_namespace,
            group=self.settings.pool_group,
            replica=self.settings.pod_name,
            endpoints=len(members),
        )

    def director(
        self, session: aiohttp.ClientSession, offload: Offload, spawn: Spawn
    ) -> PickDirector:
        if self.settings.conformance:
            log.warning("CONFORMANCE MODE: any client can choose its endpoint; never in production")
        deadline_s = self.settings.decision_deadline_s
        exact = self.settings.tokenizer == "engine" and feeds.exact_tokens(self.live.built)
        tokens = Tokens(
            tokenizer=EngineTokenizer(session, self._someone) if exact else None,
            spawn=spawn,
            offload=offload,
            clock=clock,
        )
        self.metrics.sources = replace(
            self.metrics.sources,
            pool=self.pool,
            tokens=tokens,
            offload=offload,
            switch=self.switch,
            config=self.reload,
            objectives=self.objectives_reload,
        )
        return PickDirector(
            pool=self.pool,
            tokens=tokens,
            offload=offload,
            switch=self.switch,
            live=self.live,
            ballot=self.ballot,
            chance=self._rng,
            clock=clock,
            ids=new_ids(self.settings.pod_name),
            admin=AdminToken(self.admin_token),
            observers=[self.metrics, self.explain, self.alarm],
            meters=self.metrics.meters,
            objectives=self.objectives,
            settings=PickSettings(
                deadline_s=deadline_s,
                tokens_s=deadline_s / 2,
                destinations=self.settings.max_endpoints,
                subset_filter=not self.settings.disable_endpoint_subset_filter,
                emit_scores=self.settings.emit_endpoint_scores,
                conformance=self.settings.conformance,
            ),
            rules=Rules(
                known_models=frozenset(self.settings.known_models),
                max_body_bytes=self.settings.max_request_bytes,
            ),
        )

    def _swap(self, built: Built) -> None:
        for producer in unfollowed(self.live.built, built):
            log.warning("its settings hold from the next start", producer=producer)
        _tell_notes(built)
        self.live.swap(built)

    def _someone(self) -> str | None:
        """A ready endpoint, another one each time."""
        ready = self.pool.ready(clock())
        return self._rng.choice(ready).address if ready else None

    def _tell_removed(self, endpoints: Collection[EndpointId]) -> None:
        for one in self.live.built.watchers:
            self.ballot.tell(one.name, partial(one.plugin.removed, endpoints))

    def _has_roles(self) -> bool:
        return any(member.role is not Role.UNLABELLED for member in self.pool.endpoints)

    def _reader(self) -> Reader:
        settings = self.settings
        if settings.store == "redis":
            assert settings.redis_url is not None
            return RedisReader(settings.redis_url, self.pool_id)
        return StateServer(
            settings.state_host,
            settings.state_port,
            token=settings.state_token(),
            is_member=lambda endpoint: endpoint in self.pool.endpoints,
        )

    # Tasks; each runs until it is cancelled

    async def follow_file(self) -> None:
        """Keep membership as the file says; a bad file keeps the last good list."""
        watched = files.watch(
            self.settings.endpoints_file,
            self.pool_id,
            on_error=lambda error: log.error("endpoints file ignored", error=str(error)),
            warn=_warn_file,
        )
        async for members in watched:
            changes = self.pool.replace(members, clock())
            if changes:
                log.info(
                    "pool changed",
                    added=len(changes.added),
                    removed=len(changes.removed),
                    changed=len(changes.changed),
                )

    async def follow_log(self) -> None:
        """Apply what writers append."""
        async for batch in self.reader.records():
            since = clock()
            for record in batch.records:
                now = clock()
                if now - since > APPLY_AT_ONCE_S:
                    await asyncio.sleep(0)
                    since = now = clock()
                self.pool.apply(record, now)

    async def tick(self) -> None:
        while True:
            self.pool.tick(clock())
            await asyncio.sleep(TICK_S)


async def serve(
    settings: ServeSettings,
    *,
    started: Callable[[Ports], None] = lambda _: None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`. Raises EppError when it cannot start."""
    stop = stop or asyncio.Event()
    picker = Picker(settings)
    _tell_notes(picker.live.built)
    picker.load_members()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with _parts(picker) as (shell, ports):
        picker.health.ready = True
        log.info("serving", **{name: getattr(ports, name) for name in Ports.__slots__})
        started(ports)
        await stop.wait()
        await _leave(picker.health, shell, settings.drain_timeout_s)
    log.info("stopped")


async def _leave(health: Health, shell: transport.ExtProcServer, drain_s: float) -> None:
    """Not ready at once; then no new stream, within `drain_s` in all no stream any more (A21)."""
    began = clock()
    health.leave()
    log.info("leaving", live_streams=shell.counts.live, limit_s=drain_s)
    await shell.quiet(QUIET_S, min(NOTICE_S, drain_s))
    log.info("draining", live_streams=shell.counts.live)
    await shell.drain(max(0.0, began + drain_s - clock()))


@asynccontextmanager
async def _parts(picker: Picker) -> AsyncIterator[tuple[transport.ExtProcServer, Ports]]:
    """Everything that runs, in the order in which it must start; it stops in reverse."""
    settings = picker.settings
    async with AsyncExitStack() as stack:
        if isinstance(picker.reader, StateServer):
            await listening.listen(picker.reader)
        stack.push_async_callback(picker.reader.close)
        offload = stack.enter_context(Offload())
        session = await stack.enter_async_context(listening.client())
        tasks = await stack.enter_async_context(listening.task_group())
        director = picker.director(session, offload, tasks.create_task)
        shell = await stack.enter_async_context(_ext_proc(picker, director, tasks))
        health = await stack.enter_async_context(
            serve_health(picker.health, host=settings.host, port=settings.grpc_health_port)
        )
        numbers = admin.metrics_app(picker.metrics, clock=clock)
        metrics = await stack.enter_async_context(
            listening.pages(numbers, settings.host, settings.metrics_port)
        )
        debug = admin_port(picker, director, clock=clock)
        debug_port = await stack.enter_async_context(
            listening.pages(debug, settings.admin_host, settings.admin_port)
        )
        for work in (picker.follow_file, picker.follow_log, picker.tick, picker.scraper.run):
            tasks.create_task(work())
        for reload in (picker.reload, picker.objectives_reload):
            if reload is not None:
                tasks.create_task(reload.run())
        state = picker.reader.port if isinstance(picker.reader, StateServer) else None
        yield (
            shell,
            Ports(grpc=shell.port, health=health, metrics=metrics, admin=debug_port, state=state),
        )


@asynccontextmanager
async def _ext_proc(
    picker: Picker, director: PickDirector, tasks: asyncio.TaskGroup
) -> AsyncIterator[transport.ExtProcServer]:
    """The gateways' port. Raises ConfigError for a certificate that cannot work."""
    settings, metrics = picker.settings, picker.metrics
    credentials, certificate = None, None
    if settings.secure_serving and settings.cert_path and settings.enable_cert_reload:
        certificate = Certificate(settings.cert_path)
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
        handlers=[picker.health.handler()],
        on_end=metrics.time_streams() if settings.enable_grpc_stream_metrics else None,
    )
    async with serving as shell:
        metrics.sources = replace(metrics.sources, streams=shell.counts, certificate=certificate)
        yield shell


def _certificate_changed(error: ConfigError | None) -> None:
    if error is None:
        log.info("certificate renewed")
    else:
        log.error("new certificate refused, the old one stays", error=str(error))


def _tell_notes(built: Built) -> None:
    for note in built.plan.notes:
        log.warning("configuration", note=note)


def _warn_page(endpoint: EndpointId, engine: str, page: str, numbers: tuple[str, ...]) -> None:
    log.warning(
        "numbers that the engine should tell are not on its metrics page",
        endpoint=str(endpoint),
        engine=engine,
        page=page,
        numbers=numbers,
    )


def _warn_file(sentence: str) -> None:
    log.warning("endpoints file", warning=sentence)


def run(settings: ServeSettings) -> None:
    """`serve` in an event loop of its own, with logs as the settings say."""
    logs.configure(settings.log_level, settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))
