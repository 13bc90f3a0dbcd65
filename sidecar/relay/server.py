"""The relay as a whole: listens, bounds the connections, and keeps the time for all of them."""

import asyncio
from collections.abc import Callable, Coroutine
from email.utils import formatdate

from sidecar.http.client import Client, NearClient
from sidecar.http.direct import Over, Served
from sidecar.http.service import Service
from sidecar.http.shell import Shell
from sidecar.proxy import Limits, Listen

from .clients import ClientConnection
from .connection import Outlet
from .handshakes import BACKLOG, Door
from .pool import Engines

CLOSE_S = 2.0
"""How long handlers whose client has left may take to end once they are cut."""
SWEEP_S = 1.0
"""Longest time between two looks at what takes too long."""


class OwnRelay(Shell):
    """A `proxy.Relay`. Give it to one event loop; `start` it once."""

    def __init__(self, *, listen: Listen, service: Service, engines: Engines) -> None:
        """`engines` is the service's own upstream."""
        super().__init__(listen, service)
        self._engines = engines
        self._wall_s: Callable[[], float] = service.wall_s
        self._servers: list[asyncio.Server] = []
        self._doors: list[Door] = []
        self._entering: set[ClientConnection] = set()  # their handshake is not over
        self._open: set[ClientConnection] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._date = b""
        self._dated_until = 0.0
        self.arrived: Callable[[], float] = service.clock
        self.limits: Limits = service.limits

    @property
    def connections(self) -> int:
        return len(self._open) + len(self._entering)

    @property
    def engine_connections(self) -> int:
        return self._engines.connections

    @property
    def spare_engine_connections(self) -> int:
        return self._engines.spares

    async def start(self) -> int:
        self.loop = asyncio.get_running_loop()
        self.outlet = Outlet(self.loop)
        await self._engines.__aenter__()
        try:
            port = await self._serve_on(self._listen.port, on_leg_port=False)
            if self._listen.leg_port is not None:
                self.leg_port = await self._serve_on(self._listen.leg_port, on_leg_port=True)
        except OSError:
            await self.close()
            raise
        self._sweep()
        return port

    async def _serve_on(self, port: int, *, on_leg_port: bool) -> int:
        tls = self._listen.tls
        server = await self.loop.create_server(
            lambda: ClientConnection(self, on_leg_port=on_leg_port),
            self._listen.host,
            port,
            backlog=BACKLOG,
            start_serving=tls is None,
        )
        self._servers.append(server)
        port = int(server.sockets[0].getsockname()[1])
        if tls is not None:
            bound = [one.dup() for one in server.sockets]
            server.close()
            door = Door(self, bound, tls, on_leg_port=on_leg_port)
            self._doors.append(door)
            door.open()
        return port

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for server in self._servers:
            server.close()
        for door in self._doors:
            door.close()
        for connection in tuple(self._open):
            connection.stop()
        await self._service.cut(CLOSE_S)
        await self._engines.__aexit__()

    # --- what connections share

    def _has_room(self) -> bool:
        if self.connections < self.limits.max_connections:
            return True
        self.refused += 1
        return False

    def enter(self, connection: ClientConnection) -> bool:
        if not self._has_room():
            return False
        self._entering.add(connection)
        return True

    def settle(self, connection: ClientConnection) -> None:
        self._entering.discard(connection)

    def admit(self, connection: ClientConnection) -> bool:
        if connection in self._entering:
            self._entering.remove(connection)
        elif not self._has_room():
            return False
        self._open.add(connection)
        return True

    def leave(self, connection: ClientConnection) -> None:
        self._open.discard(connection)

    def serve(self, client: Client) -> Coroutine[None, None, None]:
        return self._service.serve(client)

    def direct(self, client: NearClient, body: bytes, over: Over) -> Served | None:
        if self._service.upstream is not self._engines:
            return None  # something stands between, which adds to what the engine gets
        return self._service.direct(client, body, self._engines, over)

    def date(self) -> bytes:
        now = self.arrived()
        if now >= self._dated_until:
            wall = self._wall_s()
            self._date = f"Date: {formatdate(int(wall), usegmt=True)}".encode()
            self._dated_until = now + 1 - wall % 1
        return self._date

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in tuple(self._open):
            connection.sweep(now)
        self._engines.sweep(now)
        self._service.sweep()
        limits = self.limits
        shortest = min(
            *(limits.head_timeout_s, limits.upload_idle_s, limits.flush_s),
            *(limits.engine_keepalive_s, limits.idle_timeout_s, limits.total_timeout_s),
        )
        self._sweeping = self.loop.call_later(min(SWEEP_S, shortest / 4), self._sweep)
