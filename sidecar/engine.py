"""Watches the local engine: is it ready, which life is it, what is its load, what does it serve.

Three eyes: `/health` each second, its metrics page four times a second, and an idle TCP connection
whose end shows a killed engine within milliseconds. What they see goes to a `Watcher`; nothing here
decides what to do about it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec
import structlog

from epp.framework import EngineNames
from epp.state.metrics_page import EngineMetrics, PageError, parse_page
from epp.state.reports import LoadReport
from epp.state.writing.life import Life

from .http.client import Whole, engine_at
from .probes import ProbeError, Probes
from .settings import SidecarSettings
from .trust.tls import ClientTls

MAX_PAGE = 8 << 20
MAX_MODELS_BODY = 1 << 20
MAX_HEALTH_BODY = 1 << 16
STALE_S = 2.0
"""A load report older than this is not repeated."""
SLOW_CHECKS = 3
"""Health checks in a row without an answer before a silent engine counts as not ready."""
REDIAL_S = 0.1
MAX_NAMES = 1000
"""Served models whose names are kept."""
MAX_NAME = 128
"""Longest name that is kept, in characters."""
SHORT_LIVED_S = 1.0
"""A death-watch connection that ends sooner was closed on purpose: dial less often."""

log = structlog.get_logger(__name__)


class Watcher(Protocol):
    """Who is told. Calls return at once and never fail."""

    def engine_changed(self) -> None:
        """Readiness or load is another than before."""

    def engine_page(self, *, is_new_life: bool) -> None:
        """The engine answered for itself; `life.start_ms` is true at this moment."""

    def engine_model(self, model: str) -> None:
        """The name that the engine serves its base model under is known."""

    def probe_failed(self, probe: str) -> None:
        """A `health` check or a `metrics` scrape failed."""


class EngineWatch:
    """Present knowledge about one engine. `run` in a task; read the attributes at any time."""

    def __init__(
        self,
        settings: SidecarSettings,
        watcher: Watcher,
        *,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
        tls: ClientTls | None = None,
    ) -> None:
        self._tls = tls
        self._settings = settings
        self._names = settings.engine_names
        self._watcher = watcher
        self._clock = clock
        self._wall_ms = wall_ms
        self._suspect = asyncio.Event()
        self._came_up = asyncio.Event()
        self._slow = 0
        self._report = LoadReport()
        self._report_at = float("-inf")
        self.life = Life()
        self.model: str | None = settings.model
        self.model_known = asyncio.Event()
        self.served: frozenset[str] = frozenset(() if self.model is None else (self.model,))
        """Names that the engine serves models and adapters under, as far as it has told."""
        self.ready = False
        """The engine's health check says 200, and its port did not refuse since."""

    @property
    def report(self) -> LoadReport:
        """The latest load, or one that knows nothing when that is too old."""
        fresh = self._clock() - self._report_at <= STALE_S
        return self._report if fresh else LoadReport()

    def uses_blocks(self, since: float) -> bool:
        """Whether requests or other pods need blocks of its cache, as far as it tells.

        A report from before `since` may be too old to say no.
        """
        usage = self.report.kv_usage
        return usage is not None and (usage > 0 or self._report_at < since)

    def refused(self) -> None:
        """The engine's port refuses connections: it is not there."""
        self.life.lost()
        self._set_ready(False)
        self._suspect.set()

    def suspect(self) -> None:
        """There is a sign that the engine is gone: look at once."""
        self._suspect.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        settings = self._settings
        if self.model is not None:
            self._tell_model(self.model)
        async with (
            Probes(settings.engine_url, settings.probe_timeout_s, self._tls) as probes,
            asyncio.TaskGroup() as tg,
        ):
            tg.create_task(self._watch_health(probes))
            tg.create_task(self._watch_models(probes))
            tg.create_task(self._watch_metrics(probes))
            tg.create_task(self._watch_connection())

    async def _watch_health(self, probes: Probes) -> None:
        while True:
            self._suspect.clear()
            await self._check_health(probes)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.health_interval_s):
                    await self._suspect.wait()
                await asyncio.sleep(0.01)  # many requests that fail together are one sign

    async def _check_health(self, probes: Probes) -> None:
        try:
            ready = (await probes.get("/health", MAX_HEALTH_BODY)).head.status == 200
        except ProbeError as error:
            if error.refused:
                self.life.lost()
                self._set_ready(False)
                return
            # Busy is not dead: an engine may be slow to answer while it serves.
            self._slow += 1
            ready = self.ready and self._slow < SLOW_CHECKS
            self._watcher.probe_failed("health")
        else:
            self._slow = 0
        self._set_ready(ready)

    def _set_ready(self, ready: bool) -> None:
        if ready is self.ready:
            return
        self.ready = ready
        if ready:
            self._came_up.set()
        log.info("engine is ready" if ready else "engine is not ready")
        self._watcher.engine_changed()

    async def _watch_models(self, probes: Probes) -> None:
        """Adapters come and go while an engine runs."""
        while True:
            if self.ready:
                await self._ask_models(probes)
            known = self.model is not None
            pause = self._settings.models_interval_s if known else self._settings.health_interval_s
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._came_up.wait()
            self._came_up.clear()

    async def _ask_models(self, probes: Probes) -> None:
        try:
            found = await probes.get("/v1/models", MAX_MODELS_BODY)
        except ProbeError:
            return
        models = _models(found.body) if found.head.status == 200 else []
        names = [model.id for model in models if 0 < len(model.id) <= MAX_NAME]
        fit = [name for name in names[:MAX_NAMES] if name.isprintable()]
        if fit:
            own = () if self._settings.model is None else (self._settings.model,)
            self.served = frozenset((*fit, *own))
        # The first that is no adapter of another one.
        base = next((model.id for model in models if model.parent is None and model.id), None)
        if self.model is None and base is not None:
            self._tell_model(base)

    def _tell_model(self, model: str) -> None:
        self.model = model
        self._watcher.engine_model(model)
        self.model_known.set()

    async def _watch_metrics(self, probes: Probes) -> None:
        while True:
            await self._scrape(probes)
            await asyncio.sleep(self._settings.metrics_interval_s)

    async def _scrape(self, probes: Probes) -> None:
        try:
            page = _page(await probes.get(self._names.page, MAX_PAGE), self._names)
        except (ProbeError, PageError):
            if self.life.start_ms:
                self._watcher.probe_failed("metrics")
            return
        self._watcher.engine_page(is_new_life=self.life.seen(page.start_ms, self._wall_ms()))
        changed = page.report != self.report
        self._report, self._report_at = page.report, self._clock()
        if changed:
            self._watcher.engine_changed()

    async def _watch_connection(self) -> None:
        """Hold an idle connection: the kernel ends it at the moment at which the engine dies."""
        engine = engine_at(self._settings.engine_url)
        pause = REDIAL_S
        while True:
            dialled = self._clock()
            try:
                reader, writer = await asyncio.open_connection(engine.host, engine.port)
            except OSError:
                await asyncio.sleep(REDIAL_S)
                continue
            try:
                with suppress(OSError):
                    await reader.read(1)
            finally:
                writer.close()
            self.suspect()
            brief = self._clock() - dialled < SHORT_LIVED_S
            pause = min(pause * 2, 5.0) if brief else REDIAL_S
            await asyncio.sleep(pause)


def _page(found: Whole, names: EngineNames) -> EngineMetrics:
    """Read a page. An engine without one (404 and the like) has said nothing, but it is there."""
    status = found.head.status
    if status == 200:
        return parse_page(found.body, MAX_PAGE, names)
    if status < 500:
        return EngineMetrics()
    raise PageError(f"metrics page answered {status}")


def _models(body: bytes) -> "list[_Model]":
    try:
        return msgspec.json.decode(body, type=_Models).data
    except msgspec.DecodeError:
        return []


class _Model(msgspec.Struct):
    id: str = ""
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []
