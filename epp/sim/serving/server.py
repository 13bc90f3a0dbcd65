"""A simulated engine on the network: vLLM's HTTP API and its KV events over ZMQ.

In production `run` is one process; in tests `EngineServer` is an async context manager. Answers
carry `x-inference-pod` and `x-inference-port`, so that a caller sees who served. The admin routes
of `admin.py` share the port and exist on loopback addresses only.
"""

import asyncio
import os
import random
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import zmq
from aiohttp import web

from epp.errors import LocalError
from epp.sim.answers import models_body
from epp.sim.api import tokenize
from epp.sim.catalog import PARSERS, RENDERED, Parse
from epp.sim.engine import Engine
from epp.sim.generate import rendered
from epp.sim.kv import KvEvent
from epp.sim.serving import page
from epp.sim.serving.admin import Admin
from epp.sim.serving.driver import Clock, Driver
from epp.sim.serving.embeddings import Embeddings
from epp.sim.serving.faults import FaultBox
from epp.sim.serving.handover import Handover
from epp.sim.serving.inference import Inference
from epp.sim.serving.publisher import Publisher
from epp.sim.serving.recorder import Recorder
from epp.sim.serving.replays import Replays
from epp.sim.serving.state_page import describe
from epp.sim.serving.traffic import Traffic
from epp.sim.settings import EngineSettings
from epp.sim.submission import Step

__all__ = ["EngineServer", "EngineSettings", "run"]

VERSION = "0.32.0+sim"
BACKLOG = 1024
DEAD_STATUS = 1
"""Exit status of a process whose engine died of a request."""
LAST_WORDS_S = 0.2
"""Between the death of the engine and the end of its process: its requests get their answers."""


class EngineServer:
    """One listening engine. Enter it to start, leave it to stop; it starts once.

    Raises LocalError on entry when a port cannot be had.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        clock: Clock = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        crash: Callable[[int], object] = os._exit,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """`crash` ends the process with a status; `new_id` names each life of the engine."""
        self.settings = settings
        self._wall_ns = wall_ns
        self._crash = crash
        self._tasks = asyncio.TaskGroup()
        self._opened = AsyncExitStack()
        self._publisher: Publisher | None = None
        self._replays: Replays | None = None
        self.driver = Driver(
            settings,
            clock=clock,
            publish=self._publish,
            new_id=new_id,
            carry=self._carry,
            died=self._die,
        )
        self.faults = FaultBox(random.Random(settings.seed))
        self.handover: Handover | None = None
        if settings.kv_role is not None:
            self.handover = Handover(settings, self.driver, self.faults, self._tasks)
        self.embeddings = Embeddings(settings)
        self.recorder = Recorder()
        self.traffic = Traffic()
        self.port = settings.port
        self.start_ns = wall_ns()
        """Unix time of this life's start, in nanoseconds."""
        self.lives = 1

    @property
    def url(self) -> str:
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http://{host}:{self.port}"

    @property
    def kv_events_endpoint(self) -> str | None:
        """Where KV events are published; None without."""
        return self._publisher.endpoint if self._publisher else None

    @property
    def kv_replay_endpoint(self) -> str | None:
        """Where missed KV events can be asked for; None without."""
        return self._replays.endpoint if self._replays else None

    async def __aenter__(self) -> Self:
        listener = self._listen()
        try:
            self._open_publisher()
            await self._open_replays()
            if self.handover is not None:
                await self._opened.enter_async_context(self.handover)
            self._runner = web.AppRunner(
                self._app(listener.getsockname()[1]),
                handler_cancellation=True,
                access_log=None,
                shutdown_timeout=self.settings.grace_s,
            )
            await self._runner.setup()
            await web.SockSite(self._runner, listener, backlog=BACKLOG).start()
        except BaseException:
            listener.close()
            await self._opened.aclose()
            self._close_publisher()
            raise
        await self._tasks.__aenter__()
        self._driving = self._tasks.create_task(self.driver.run(), name="engine")
        if self.handover is not None:
            self.handover.puller.start_heartbeats(self.driver)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._runner.cleanup()
        finally:
            self._driving.cancel()
            await self._opened.aclose()
            # The group would wrap the body's own error; it must only see the cancellation with
            # which it reports that the engine task died.
            cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
            try:
                await self._tasks.__aexit__(*((kind, error, trace) if cancelled else (None,) * 3))
            finally:
                self._close_publisher()

    def restart(self) -> None:
        """Become what a new process would be: nothing cached, nothing running, sequence from 0."""
        self.driver.restart()
        self.embeddings.forget()
        if self._publisher is not None:
            self._publisher.restart()
        # Readers know a life by its start in milliseconds, so two must never share one.
        self.start_ns = max(self._wall_ns(), self.start_ns + 1_000_000)
        self.lives += 1

    def state(self) -> dict[str, object]:
        """What `/admin/state` shows."""
        engine = self.driver.engine
        return {
            "name": self.settings.name,
            "port": self.port,
            "start_ms": self.start_ns // 1_000_000,
            "lives": self.lives,
            **describe(engine),
            "transfer": self.handover.state() if self.handover is not None else None,
            "next_event_sequence": self._publisher.sequence if self._publisher else None,
            "requests": self.traffic.by_route(),
            "left": self.traffic.left,
            "cut": self.traffic.cut,
            "faults": self.faults.active,
        }

    def _carry(self, engine: Engine, step: Step) -> None:
        if self.handover is not None:
            self.handover.carry(engine, step)

    def _die(self) -> None:
        if self.settings.exit_when_dead:
            asyncio.get_running_loop().call_later(LAST_WORDS_S, self._crash, DEAD_STATUS)

    def _listen(self) -> socket.socket:
        address = (self.settings.host, self.settings.port)
        family = socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET
        try:
            listener = socket.create_server(address, family=family, backlog=BACKLOG)
        except OSError as error:
            raise LocalError(
                f"The engine cannot listen on {self.settings.host}:{self.settings.port} "
                f"({error.strerror or error}); choose another port."
            ) from error
        self.port = self.embeddings.port = listener.getsockname()[1]
        return listener

    def _open_publisher(self) -> None:
        settings = self.settings
        if settings.kv_events is None:
            return
        topic = f"kv@{settings.host}:{self.port}@{settings.model}"
        publisher = Publisher(settings.kv_events, bind=settings.kv_events_bind, topic=topic)
        try:
            self._publisher = publisher.__enter__()
        except zmq.ZMQError as error:
            raise LocalError(
                f"The engine cannot publish KV events on {settings.kv_events} ({error}); "
                "choose another endpoint."
            ) from error

    async def _open_replays(self) -> None:
        endpoint = self.settings.kv_replay
        if endpoint is None or self._publisher is None:
            return
        try:
            replays = Replays(endpoint, self._publisher)
            self._replays = await self._opened.enter_async_context(replays)
        except zmq.ZMQError as error:
            raise LocalError(
                f"The engine cannot answer for missed KV events on {endpoint} ({error}); "
                "choose another endpoint."
            ) from error

    def _close_publisher(self) -> None:
        if self._publisher is not None:
            self._publisher.__exit__(None, None, None)
            self._publisher = None

    def _publish(self, events: Sequence[KvEvent]) -> None:
        if self._publisher is not None:
            ts = self._wall_ns() / 1e9
            self._publisher.publish(events, ts=ts, lost=self.faults.drops_batch())

    def _app(self, port: int) -> web.Application:
        settings = self.settings
        app = web.Application(
            middlewares=[self.traffic.middleware], client_max_size=settings.max_body_bytes
        )
        inference = Inference(
            settings,
            self.driver,
            self.faults,
            wall_ns=self._wall_ns,
            recorder=self.recorder,
            handover=self.handover,
            embeddings=self.embeddings,
        )
        app.add_routes(
            [
                *(web.post(api, inference.handler(parse)) for api, parse in PARSERS.items()),
                web.post("/tokenize", self._tokenize),
                *(web.post(f"{api}/render", self._renders(PARSERS[api])) for api in RENDERED),
                web.get("/embeddings/{name}", self._has_embeddings),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
            ]
        )
        if settings.loopback:
            admin = Admin(
                driver=self.driver,
                faults=self.faults,
                restart=self.restart,
                crash=self._crash,
                state=self.state,
                recorder=self.recorder,
            )
            app.add_routes(admin.routes())
        served_by = {"x-inference-pod": settings.name, "x-inference-port": str(port)}

        async def sign(_: web.Request, response: web.StreamResponse) -> None:
            response.headers.update(served_by)

        app.on_response_prepare.append(sign)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        alive = 200 if self.driver.engine.dead is None else 503
        return web.Response(status=self.faults.active.health_status or alive)

    async def _metrics(self, _: web.Request) -> web.Response:
        body = page.render(self.driver.engine, self.settings, start_s=self.start_ns / 1e9)
        return web.Response(body=body, headers={"Content-Type": page.CONTENT_TYPE})

    async def _models(self, _: web.Request) -> web.Response:
        names = (self.settings.model, *self.settings.loras)
        created = self.start_ns // 1_000_000_000
        body = models_body(names, created, self.settings.context_tokens)
        return web.Response(body=body, content_type="application/json")

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _has_embeddings(self, request: web.Request) -> web.Response:
        """Asked by an engine that was told to have them from here."""
        return web.Response(status=200 if request.match_info["name"] in self.embeddings else 404)

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = tokenize(await request.read(), self.settings)
        return web.Response(body=body, content_type="application/json")

    def _renders(self, parse: Parse) -> Callable[[web.Request], Awaitable[web.Response]]:
        """The handler of one API's `/render`."""

        async def handle(request: web.Request) -> web.Response:
            ask = parse(await request.read(), self.settings)
            return web.Response(body=rendered(ask), content_type="application/json")

        return handle


async def run(
    settings: EngineSettings, ready: Callable[[EngineServer], None] | None = None
) -> None:
    """Serve until SIGTERM, SIGINT or cancellation; `ready` is called once the port answers.

    Must run in the main thread. Running requests have `settings.grace_s` to end.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for one in signals:
        loop.add_signal_handler(one, stop.set)
    try:
        async with EngineServer(settings) as server:
            if ready is not None:
                ready(server)
            await stop.wait()
    finally:
        for one in signals:
            loop.remove_signal_handler(one)
