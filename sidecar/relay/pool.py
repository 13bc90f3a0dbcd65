"""Keeps connections to engines for further requests: a `http.client.Upstream`.

Rule: what must not be sent twice goes over a connection that is new, or that was put away
`RECENT_S` ago at most, and is never repeated. An engine closes a connection between two requests
when it was idle for seconds (uvicorn: 5, and no server that is known to serve engines less than 1),
or because it ends; so on a recent one a request meets a closed end only where it would on a new
one. Should it all the same, then its loss is told like any other, nothing is sent again, and who
sent it does without (rule 7 of `sidecar.handoff`).
"""

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address

from sidecar.http.client import Asked, Call, Listener, engine_at
from sidecar.http.refusals import ENGINE_ABSENT, ENGINE_LOST, ENGINE_UNREACHED, LegError
from sidecar.proxy import Limits
from sidecar.transfer.targets import Target
from sidecar.trust.tls import PLAIN, ClientTls, Outward

from .asking import Coming, Repeating
from .connection import Outlet
from .engines import EngineAnswer, EngineConnection

MAX_SPARE = 1024
"""Connections that are kept for one address; more than these are closed when they are done."""
RECENT_S = 0.5
"""How long a connection may have been spare that carries what must not be sent twice."""


class Engines:
    """Client of one engine and of other sidecars. The latest connection is used first."""

    def __init__(self, engine_url: str, limits: Limits, tls: Outward = PLAIN) -> None:
        self._engine = engine_at(engine_url)
        self._tls = tls
        self._limits = limits
        self._kept_for: dict[tuple[str, int, bool], deque[EngineConnection]] = {}
        """By where they lead, and whether they speak TLS."""
        self._open: set[EngineConnection] = set()
        self.repeats = 0
        """Requests that were sent a second time."""

    @property
    def connections(self) -> int:
        """Connections at present, to whomever."""
        return len(self._open)

    @property
    def spares(self) -> int:
        """Those among them that wait for a request."""
        return sum(map(len, self._kept_for.values()))

    async def __aenter__(self) -> "Engines":
        self._loop = asyncio.get_running_loop()
        self._outlet = Outlet(self._loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._kept_for.clear()
        for connection in tuple(self._open):
            connection.drop()

    async def send(self, call: Call) -> EngineAnswer:
        kept = self._kept(self._engine, self._tls.engine)
        if kept is not None:
            try:
                return await kept.ask(call)
            except LegError as error:
                repeatable = call.upload is None or call.upload.repeatable
                if error.refused is not ENGINE_LOST or not kept.silent or not repeatable:
                    raise
            return await self.send_again(call)
        return await self.send_once(call)

    async def send_once(self, call: Call) -> EngineAnswer:
        return await (self._recent() or await self.fresh()).ask(call)

    async def send_again(self, call: Call) -> EngineAnswer:
        self.repeats += 1
        return await (await self.fresh()).ask(call)

    def ask(self, listener: Listener, call: Call, *, once: bool) -> Asked:
        kept = self._recent() if once else self.spare()
        if kept is None:
            return Coming(self.fresh(), listener, call)
        if once:
            kept.ask_for(listener, call)
            return kept
        return Repeating(kept, listener, call, self._ask_again)

    def _ask_again(self, listener: Listener, call: Call) -> Coming:
        self.repeats += 1
        return Coming(self.fresh(), listener, call)

    def ask_at(self, target: Target, listener: Listener, call: Call) -> Asked:
        tls = self._tls_of(plain=False)
        kept = self._kept(target, tls)
        if kept is None:
            return Coming(self._connect(target, tls), listener, call)
        kept.ask_for(listener, call)
        return kept

    def spare(self) -> EngineConnection | None:
        """A spare connection to the engine; whoever gets it asks for something on it."""
        return self._kept(self._engine, self._tls.engine)

    async def fresh(self) -> EngineConnection:
        """The same that is new. Raises LegError."""
        return await self._connect(self._engine, self._tls.engine)

    async def send_to(self, target: Target, call: Call, *, plain: bool = False) -> EngineAnswer:
        tls = self._tls_of(plain=plain)
        kept = self._kept(target, tls)
        return await (kept or await self._connect(target, tls)).ask(call)

    def _tls_of(self, *, plain: bool) -> ClientTls | None:
        """How other pods are spoken to."""
        return None if plain else self._tls.peers

    def sweep(self, now: float) -> None:
        """Close what was spare for too long; called from time to time."""
        for way, spare in tuple(self._kept_for.items()):
            while spare and now - spare[0].since > self._limits.engine_keepalive_s:
                spare.popleft().drop()
            if not spare:
                del self._kept_for[way]

    def _kept(self, target: Target, tls: ClientTls | None) -> EngineConnection | None:
        spare = self._kept_for.get((target.host, target.port, tls is not None))
        if not spare:
            return None
        oldest = self._loop.time() - self._limits.engine_keepalive_s
        while spare:
            connection = spare.pop()
            if connection.usable and connection.since >= oldest:
                return connection
            connection.drop()
        return None

    def _recent(self) -> EngineConnection | None:
        """A spare connection to the engine that was in use a moment ago."""
        kept = self.spare()
        if kept is None or self._loop.time() - kept.since <= RECENT_S:
            return kept
        self._kept_for[kept.to.host, kept.to.port, kept.secure].append(kept)
        return None

    def _put_away(self, connection: EngineConnection) -> None:
        way = (connection.to.host, connection.to.port, connection.secure)
        spare = self._kept_for.get(way)
        if spare is None:
            spare = self._kept_for[way] = deque()
        if len(spare) >= MAX_SPARE:
            connection.drop()
            return
        connection.since = self._loop.time()
        spare.append(connection)

    async def _connect(self, to: Target, tls: ClientTls | None) -> EngineConnection:
        """A fresh connection. Raises LegError."""
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                connection = await self._first_of(to, tls)
        except ConnectionRefusedError as error:
            raise LegError(ENGINE_ABSENT) from error
        except OSError as error:  # no way there, or not in time
            raise LegError(ENGINE_UNREACHED) from error
        if not connection.lost:
            self._open.add(connection)
        return connection

    async def _first_of(self, to: Target, tls: ClientTls | None) -> EngineConnection:
        """A connection to the first address that takes one. Raises OSError of the last."""
        failed: OSError = OSError(f"{to.host} has no address")
        for at in await self._addresses(to):
            try:
                _, connection = await self._loop.create_connection(
                    lambda: EngineConnection(
                        to,
                        self._limits,
                        self._outlet,
                        secure=tls is not None,
                        spare=self._put_away,
                        gone=self._open.discard,
                    ),
                    at,
                    to.port,
                    ssl=None if tls is None else tls.current,
                    server_hostname=None if tls is None else tls.name_for(to.host),
                )
            except OSError as error:
                failed = error
            else:
                return connection
        raise failed

    async def _addresses(self, to: Target) -> Sequence[str]:
        """An address is its own; a name's are asked for, in a thread of their own."""
        if is_address(to.host):
            return (to.host,)
        found = await self._loop.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
        return [str(at[0]) for _, _, _, _, at in found]


@lru_cache(maxsize=1024)
def is_address(host: str) -> bool:
    """Whether no name server need be asked."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
