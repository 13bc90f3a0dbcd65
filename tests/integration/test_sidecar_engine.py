"""The watch over one engine, with engines that are slow, silent, incomplete or odd."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from epp.state.reports import LoadReport
from sidecar import engine as module
from sidecar.engine import EngineWatch
from tests.fakes.sidecars import quick_settings
from tests.fakes.upstreams import Conversation, RawUpstream, answer
from tests.fakes.waiting import until

PAGE = b"vllm:num_requests_waiting 3\nvllm:num_requests_running 2\n"
START = b"process_start_time_seconds 1000.5\n"


@dataclass
class Seen:
    """A `Watcher` that remembers."""

    changes: int = 0
    lives: int = 0
    pages: int = 0
    models: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def engine_changed(self) -> None:
        self.changes += 1

    def engine_page(self, *, is_new_life: bool) -> None:
        self.pages += 1
        self.lives += is_new_life

    def engine_model(self, model: str) -> None:
        self.models.append(model)

    def probe_failed(self, probe: str) -> None:
        self.failures.append(probe)


@dataclass
class Engine:
    """Answers by path; a path that is missing hangs."""

    pages: dict[str, tuple[int, bytes]]

    async def script(self, talk: Conversation) -> None:
        path = talk.request.line.split()[1].decode()
        if path not in self.pages:
            await talk.reader.readexactly(1)
        status, body = self.pages[path]
        await answer(body, status=b"%d X" % status)(talk)


@asynccontextmanager
async def watching(
    engine: Engine, **changes: object
) -> AsyncIterator[tuple[EngineWatch, Seen, RawUpstream]]:
    seen = Seen()
    upstream = RawUpstream(engine.script)
    async with upstream.running():
        often = {"health_interval_s": 0.02, "metrics_interval_s": 0.02}
        settings = quick_settings(upstream.port, 1, **{**often, **changes})
        watch = EngineWatch(settings, seen, clock=time.monotonic, wall_ms=lambda: 77_000)
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(watch.run())
            try:
                yield watch, seen, upstream
            finally:
                task.cancel()


async def test_load_and_start_come_from_the_metrics_page() -> None:
    engine = Engine({"/health": (200, b""), "/metrics": (200, PAGE + START)})
    async with watching(engine, model="m") as (watch, seen, _):
        await until(lambda: watch.ready and seen.pages > 3)
        assert watch.life.start_ms == 1_000_500
        assert watch.report == LoadReport(waiting=3, running=2)
        assert (seen.lives, seen.models) == (1, ["m"])


async def test_an_engine_of_another_kind_is_read_by_its_names_and_at_its_page() -> None:
    page = b"trtllm_num_requests_waiting 3\nbusy 2\n"
    engine = Engine(
        {"/health": (200, b""), "/metrics": (200, b"[]"), "/prometheus/metrics": (200, page)}
    )
    kind = {"engine_type": "trtllm-serve", "engine_metrics": ("runningRequestsSpec=busy",)}
    async with watching(engine, model="m", **kind) as (watch, seen, _):
        await until(lambda: seen.pages > 3)
        assert watch.report == LoadReport(waiting=3, running=2)


async def test_an_engine_without_a_metrics_page_lives_since_it_was_first_seen() -> None:
    engine = Engine({"/health": (200, b""), "/metrics": (404, b"no")})
    async with watching(engine, model="m") as (watch, seen, _):
        await until(lambda: seen.pages > 3)
        assert watch.life.start_ms == 77_000
        assert seen.lives == 1
        assert watch.report == LoadReport()


async def test_a_metrics_page_that_fails_tells_nothing_about_the_life() -> None:
    engine = Engine({"/health": (200, b""), "/metrics": (500, b"no")})
    async with watching(engine, model="m") as (watch, seen, _):
        await until(lambda: watch.ready)
        await asyncio.sleep(0.1)
        assert (watch.life.start_ms, seen.pages) == (0, 0)


async def test_the_model_is_the_first_that_is_no_adapter() -> None:
    models = {"data": [{"id": "lora", "parent": "base"}, {"id": "base"}, {"id": "alias"}]}
    engine = Engine(
        {
            "/health": (200, b""),
            "/metrics": (200, PAGE),
            "/v1/models": (200, json.dumps(models).encode()),
        }
    )
    async with watching(engine) as (watch, seen, _):
        await until(lambda: seen.models)
        await asyncio.sleep(0.1)
        assert seen.models == ["base"]
        assert watch.model_known.is_set()


async def test_a_model_that_cannot_be_learnt_yet_is_asked_for_again() -> None:
    pages = {"/health": (200, b""), "/metrics": (200, PAGE), "/v1/models": (401, b"")}
    async with watching(Engine(pages)) as (_, seen, _upstream):
        await asyncio.sleep(0.1)
        pages["/v1/models"] = (200, b'{"data": "oops"}')
        await asyncio.sleep(0.1)
        assert seen.models == []
        pages["/v1/models"] = (200, b'{"data": [{"id": "m"}]}')
        await until(lambda: seen.models == ["m"])


async def test_names_of_adapters_that_come_and_go_are_known() -> None:
    pages = {
        "/health": (200, b""),
        "/metrics": (200, PAGE),
        "/v1/models": (200, b'{"data": [{"id": "base"}]}'),
    }
    async with watching(Engine(pages), model="m", models_interval_s=0.02) as (watch, seen, _):
        assert watch.served == {"m"}
        await until(lambda: watch.served == {"m", "base"})
        names = ["base", "lora", "", "a\nb", "x" * 129]
        models = {"data": [{"id": name, "parent": "base"} for name in names]}
        pages["/v1/models"] = (200, json.dumps(models).encode())
        await until(lambda: watch.served == {"m", "base", "lora"})
        pages["/v1/models"] = (500, b"")
        await asyncio.sleep(0.1)
        assert watch.served == {"m", "base", "lora"}
        assert seen.models == ["m"], "the model that keys are seeded with stays"


async def test_no_more_names_are_kept_than_metrics_can_bear() -> None:
    models = {"data": [{"id": f"lora-{n}"} for n in range(3000)]}
    pages = {
        "/health": (200, b""),
        "/metrics": (200, PAGE),
        "/v1/models": (200, json.dumps(models).encode()),
    }
    async with watching(Engine(pages)) as (watch, _, _upstream):
        await until(lambda: watch.served)
        assert len(watch.served) == module.MAX_NAMES


async def test_a_load_that_is_too_old_is_not_repeated() -> None:
    pages = {"/health": (200, b""), "/metrics": (200, PAGE + START)}
    async with watching(Engine(pages), model="m") as (watch, seen, _):
        await until(lambda: watch.report == LoadReport(waiting=3, running=2))
        pages["/metrics"] = (500, b"")
        await asyncio.sleep(0.1)
        assert watch.report == LoadReport(waiting=3, running=2)
        await asyncio.sleep(module.STALE_S)
        assert watch.report == LoadReport()
        assert "metrics" in seen.failures
        assert watch.ready, "a page that fails says nothing about readiness"


async def test_a_slow_health_check_is_forgiven_and_silence_is_not() -> None:
    pages = {"/health": (200, b""), "/metrics": (200, PAGE)}
    async with watching(Engine(pages), model="m", probe_timeout_s=0.1) as (watch, seen, _):
        await until(lambda: watch.ready)
        health = pages.pop("/health")
        await until(lambda: seen.failures.count("health") == 1)
        assert watch.ready
        pages["/health"] = health
        await asyncio.sleep(0.3)
        assert watch.ready
        pages.pop("/health")
        await until(lambda: not watch.ready)


async def test_a_refused_connection_is_not_ready_at_once_and_a_good_check_brings_it_back() -> None:
    pages = {"/health": (200, b""), "/metrics": (200, PAGE + START)}
    async with watching(Engine(pages), model="m") as (watch, seen, _):
        await until(lambda: watch.ready and seen.lives)
        watch.refused()
        assert not watch.ready
        await until(lambda: watch.ready)
        await asyncio.sleep(0.1)
        assert seen.lives == 1, "its start says that it is still the same process"


async def test_without_a_start_an_engine_that_was_away_is_another_life() -> None:
    pages = {"/health": (200, b""), "/metrics": (200, PAGE)}
    async with watching(Engine(pages), model="m") as (watch, seen, _):
        await until(lambda: watch.ready and seen.lives == 1)
        watch.refused()
        await until(lambda: seen.lives == 2)
        assert watch.life.start_ms == 77_001


async def test_a_status_other_than_200_is_not_ready() -> None:
    pages = {"/health": (200, b""), "/metrics": (200, PAGE)}
    async with watching(Engine(pages), model="m") as (watch, _, _upstream):
        await until(lambda: watch.ready)
        pages["/health"] = (503, b"")
        await until(lambda: not watch.ready)
        pages["/health"] = (200, b"")
        await until(lambda: watch.ready)
        pages["/health"] = (204, b"")
        await until(lambda: not watch.ready)
        assert not watch.ready


async def test_an_engine_that_hangs_up_on_idle_connections_is_not_dialled_in_a_loop() -> None:
    pages = {"/health": (200, b""), "/metrics": (200, PAGE)}
    async with watching(Engine(pages), model="m", health_interval_s=60.0) as (watch, _, upstream):
        await until(lambda: watch.ready)
        upstream.idle_close_s = 0.01
        before = upstream.connections
        await asyncio.sleep(1.0)
        # Scrapes every 20 ms need a new connection each; the death watch backs off.
        assert upstream.connections - before < 80
        assert watch.ready
