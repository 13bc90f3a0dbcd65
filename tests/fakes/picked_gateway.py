"""Backends, a scripted picker and a real Envoy in front of them, in one context."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from epp.observe.health import Health
from epp.request.exchange import Arrival, Outcome
from epp.request.transport.grpc import ExtProcServer, TransportLimits, serve
from epp.request.transport.tls import server_credentials
from epp.sim.gateway.envoy import EnvoySettings, Shape
from epp.sim.gateway.routes import EVERY_PATH

from .backend import Backend, backend
from .director import ScriptedDirector, route
from .gateway import Gateway, gateway


@dataclass(slots=True)
class Rig:
    """What runs. `picker.drain(0)` is the picker's death."""

    gateway: Gateway
    picker: ExtProcServer
    director: ScriptedDirector
    health: Health
    backends: list[Backend]

    def to(self, index: int) -> Callable[[Arrival], Outcome]:
        """A script that sends everything to one backend."""
        return lambda _: route(self.backends[index].address)


@asynccontextmanager
async def rig(
    directory: Path,
    shape: Shape = "standalone",
    *,
    backends: int = 2,
    more_endpoints: tuple[str, ...] = (),
    limits: TransportLimits | None = None,
    edit: Callable[[str], str] = str,
    tls: bool = False,
    settings: Callable[[EnvoySettings], EnvoySettings] = lambda each: each,
) -> AsyncIterator[Rig]:
    """Everything goes to the second backend until a test sets another script: round robin would
    not do that for long."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(backend(f"b{n}")) for n in range(backends)]
        director = ScriptedDirector(lambda _: route(engines[-1].address))
        health = Health(ready=True)
        picker = await stack.enter_async_context(
            serve(
                director,
                host="127.0.0.1",
                port=0,
                credentials=server_credentials(None) if tls else None,
                limits=limits or TransportLimits(),
                handlers=[health.handler()],
            )
        )
        wanted = EnvoySettings(
            listen_port=0,
            admin_port=0,
            ext_proc_port=picker.port,
            endpoints=[*(each.address for each in engines), *more_endpoints],
            tls=tls,
            shape=shape,
            api_paths=EVERY_PATH,
            health_interval_s=0.1,
        )
        envoy = await stack.enter_async_context(gateway(directory, settings(wanted), edit=edit))
        yield Rig(envoy, picker, director, health, engines)
