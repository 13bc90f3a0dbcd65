"""The host of several workers: one set of ports, and processes that are started again.

Start: the ext_proc port is looked at first (two pickers on one port would share it silently), then
the first worker, which hosts the embedded store, then the others, then readiness. Stop: readiness
goes first; each worker drains by itself; who has not ended a little after the drain time is cut.
"""

import asyncio
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import structlog
import uvloop

from epp import listening
from epp.config.serve import ServeSettings, is_loopback
from epp.errors import CannotListen, EppError
from epp.observe import logs
from epp.observe.health import Health, serve_health
from epp.stores import Place

from .child import Order
from .pages import Asking, Modes, admin_app, metrics_app
from .process import Worker

PATIENCE_S = 10.0
"""Beyond the drain time, for a worker to end."""
CHECK_S = 0.2

log = structlog.get_logger(__name__)


def run(settings: ServeSettings) -> None:
    """Serve with `settings.workers` workers until SIGTERM or SIGINT. Raises EppError."""
    logs.configure(settings.log_level, settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))


async def serve(settings: ServeSettings) -> None:
    """See the module."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with _reserved(settings.host, settings.grpc_port) as port, _directory() as directory:
        modes, health = Modes(), Health()
        workers = [
            Worker(number, _order(settings, modes, port, directory / "store.sock", number))
            for number in range(settings.workers)
        ]
        async with _ports(settings, workers, modes, health) as ports, asyncio.TaskGroup() as tasks:
            keeping: list[asyncio.Task[None]] = []
            stopping = tasks.create_task(stop.wait())
            for worker in workers:  # the first one hosts the store for the others
                keeping.append(tasks.create_task(worker.keep()))
                if worker is workers[0]:
                    await _first_of(stopping, tasks.create_task(worker.started.wait()))
            every = asyncio.gather(*(worker.started.wait() for worker in workers))
            await _first_of(stopping, every)
            if not stop.is_set() and _failed(workers) is None:
                log.info("serving", grpc=port, workers=len(workers), **ports)
                await _follow(workers, health, stopping)
            stopping.cancel()
            await _leave(workers, keeping, health, settings.drain_timeout_s)
    if _failed(workers) is not None:
        raise EppError("a worker could not start: its own line above says why")
    log.info("stopped")


async def _first_of(*waiting: "asyncio.Future[Any]") -> None:
    """Until one of them is done; all but the first are then given up."""
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for other in waiting[1:]:
        other.cancel()


async def _follow(workers: Sequence[Worker], health: Health, stopping: "asyncio.Task[Any]") -> None:
    """Ready while any worker serves; until we are asked to stop."""
    while not stopping.done():
        ready = any(worker.pages is not None for worker in workers)
        if health.ready != ready:
            health.ready = ready
        await asyncio.wait((stopping,), timeout=CHECK_S)


async def _leave(
    workers: Sequence[Worker],
    keeping: Collection["asyncio.Task[None]"],
    health: Health,
    drain_s: float,
) -> None:
    """Not ready at once; then each worker drains, and is cut when it takes too long."""
    health.leave()
    log.info("leaving", workers=len(workers), limit_s=drain_s)
    for worker in workers:
        worker.leave()
    _, late = await asyncio.wait(keeping, timeout=drain_s + PATIENCE_S)
    for worker in workers:
        worker.kill()
    for task in late:
        task.cancel()


def _failed(workers: Sequence[Worker]) -> int | None:
    """Exit status of one that could not start."""
    return next((worker.failed for worker in workers if worker.failed is not None), None)


def _order(
    settings: ServeSettings, modes: Modes, port: int, path: Path, number: int
) -> Callable[[], str]:
    """What a worker is told: the same settings with pages on free ports of loopback."""

    def order() -> str:
        own = settings.model_copy(
            update={
                "workers": 1,
                "grpc_port": port,
                "grpc_health_port": 0,
                "metrics_port": 0,
                "admin_host": "127.0.0.1",
                "admin_port": 0,
                "mode": modes.now or settings.mode,
            }
        )
        return Order.of(own, Place(number=number, socket=path)).text()

    return order


@asynccontextmanager
async def _ports(
    settings: ServeSettings, workers: Sequence[Worker], modes: Modes, health: Health
) -> AsyncIterator[dict[str, int]]:
    """The host's own ports, by the names of `epp serve`. Raises EppError."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(listening.client())
        asking = Asking(workers, session)
        admin = admin_app(
            asking,
            modes,
            token=None if is_loopback(settings.admin_host) else settings.admin_token(),
            max_probe_bytes=settings.max_request_bytes,
        )
        numbers = metrics_app(workers, asking)
        yield {
            "health": await stack.enter_async_context(
                serve_health(health, host=settings.host, port=settings.grpc_health_port)
            ),
            "metrics": await stack.enter_async_context(
                listening.pages(numbers, settings.host, settings.metrics_port, "metrics")
            ),
            "admin": await stack.enter_async_context(
                listening.pages(admin, settings.admin_host, settings.admin_port, "admin")
            ),
        }


@contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    """The ext_proc port, held without listening, so that only our workers can share it.

    Raises CannotListen when somebody listens there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.socket(family, socket.SOCK_STREAM) as probe,
        socket.socket(family, socket.SOCK_STREAM) as held,
    ):
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen()
            found: int = probe.getsockname()[1]
            probe.close()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((host, found))
        except OSError as error:
            raise CannotListen("ext_proc", f"{host}:{port}", error, "--grpc-port") from error
        yield found


@contextmanager
def _directory() -> Iterator[Path]:
    """A directory that only we may enter, for the workers' socket."""
    with tempfile.TemporaryDirectory(prefix="epp-") as path:
        yield Path(path)
