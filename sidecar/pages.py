"""The sidecar's pages for operators: `/metrics`, `/healthz` for this process's own liveness, and
`/drain` for the preStop hook of the engine: it is answered when the engine may end."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from email.utils import formatdate
from ipaddress import ip_address

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from .guard import address
from .http.client import Client
from .http.direct import Direct, Over
from .proxy import Limits
from .relay.clients import ClientConnection
from .relay.connection import Outlet

MAX_READERS = 64
"""Connections at once."""
SWEEP_S = 5.0
_TEXT = "text/plain; charset=utf-8"


class Pages:
    """A small server on the relay's connections. A `relay.clients.House`."""

    def __init__(
        self,
        registry: CollectorRegistry,
        wall_s: Callable[[], float],
        drain: Callable[[], Awaitable[int]],
    ) -> None:
        """`drain` ends the taking of requests; it returns how many had not ended in time."""
        self._drain = drain
        self._registry = registry
        self._wall_s = wall_s
        self._open: set[ClientConnection] = set()
        self.limits = Limits(
            max_body_bytes=1 << 10, head_timeout_s=10, client_keepalive_s=600, flush_s=10
        )

    async def start(self, host: str | None, port: int) -> int:
        """Listen, and return the port. Raises OSError when it cannot."""
        self.loop = asyncio.get_running_loop()
        self.outlet = Outlet(self.loop)
        self._server = await self.loop.create_server(
            lambda: ClientConnection(self, on_leg_port=False), host, port
        )
        self._sweep()
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        self._sweeping.cancel()
        self._server.close()
        for connection in tuple(self._open):
            connection.stop()

    async def _answer(self, client: Client) -> None:
        incoming = client.incoming
        status, kind, body = 200, _TEXT, b"ok\n"
        if incoming.method not in {"GET", "HEAD"}:
            status, body = 405, b"GET only\n"
        elif incoming.path == "/metrics":
            kind, body = CONTENT_TYPE_LATEST, generate_latest(self._registry)
        elif incoming.path == "/drain":
            status, body = await self.drained(incoming.peer)
        elif incoming.path != "/healthz":
            status, body = 404, b"/metrics, /healthz and, from this pod, /drain are here\n"
        client.begin(
            status, _REASONS[status], [(b"Content-Type", kind.encode())], len(body), follows=True
        )
        client.write(body)
        client.end()

    async def drained(self, peer: str) -> tuple[int, bytes]:
        """Only whoever shares our network may end us: a container of the same pod."""
        if not _is_loopback(peer):
            return 403, b"only from this pod\n"
        left = await self._drain()
        return (503, b"%d are left\n" % left) if left else (200, b"drained\n")

    # --- what connections share

    def admit(self, connection: ClientConnection) -> bool:
        if len(self._open) >= MAX_READERS:
            return False
        self._open.add(connection)
        return True

    def leave(self, connection: ClientConnection) -> None:
        self._open.discard(connection)

    def date(self) -> bytes:
        return f"Date: {formatdate(self._wall_s(), usegmt=True)}".encode()

    def arrived(self) -> float:
        return self.loop.time()

    def serve(self, client: Client) -> Coroutine[None, None, None]:
        return self._answer(client)

    def direct(self, client: Client, body: bytes, over: Over) -> Direct | None:
        return None

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in tuple(self._open):
            connection.sweep(now)
        self._sweeping = self.loop.call_later(SWEEP_S, self._sweep)


_REASONS = {
    200: "OK",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


def _is_loopback(peer: str) -> bool:
    try:
        return ip_address(address(peer)).is_loopback
    except ValueError:
        return False
