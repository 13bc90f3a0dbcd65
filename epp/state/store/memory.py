"""The picker's own log: sidecars stream their records over one connection each to its state port.

`StateServer` is the Reader in the picker; `port_writer` has the Writer of a sidecar. One picker
replica only. The first frame of a connection is a Hello, answered by a Welcome; then records flow
one way. A newer connection for an endpoint replaces the older one, unless it speaks for an earlier
life. A writer begins with a snapshot whenever it connects, so of records nothing is kept here, only
what a writer wants to know again should it restart.

Who may connect: with a token, whoever presents it; without one, loopback only.
"""

import asyncio
import hmac
import ipaddress
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

from google.protobuf.message import DecodeError

from epp._pb import state_pb2 as pb
from epp.errors import CannotListen, StoreError
from epp.framework import EndpointId, Incarnation

from . import OneStream
from .abreast import LOOK_S, Abreast
from .frames import FrameBuffer, frame
from .memories import Assembly, Memories, pieces

VERSION = 1
FENCED = "fenced"
"""Refusal of a writer that another, or a later life, has replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    connections: int = 1024
    hello_s: float = 2.0
    """Time for the first frame."""
    idle_s: float = 30.0
    """A writer reports several times a second; one that is silent for this long is gone."""
    queued_bytes: int = 1 << 20
    """Records of one connection that wait to be applied; then it is not read from any more."""


class StateServer(OneStream):
    """Reader that hosts the log. `start` first, then iterate `records` in one task.

    `refused` counts connections that were turned away, by reason; `token` never appears anywhere.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        token: str | None,
        is_member: Callable[[EndpointId], bool],
        limits: ServerLimits | None = None,
    ) -> None:
        self.limits = limits or ServerLimits()
        self.refused: dict[str, int] = {}
        self._host = host
        self._port = port
        self._token = token
        self._is_member = is_member
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._writers: dict[EndpointId, _Connection] = {}
        self._starts: dict[EndpointId, int] = {}
        self._records: list[bytes] = []
        self._arrived = asyncio.Event()
        self._behind_s = 0.0
        self.memories = Memories()
        self.listening_since: float | None = None

    async def start(self) -> None:
        """Listen. Raises CannotListen."""
        loop = asyncio.get_running_loop()
        self.listening_since = loop.time()
        make = partial(_Connection, self)
        try:
            self._server = await loop.create_server(make, self._host, self._port)
        except OSError as error:
            at = f"{self._host}:{self._port}"
            raise CannotListen("sidecars", at, error, "--state-port") from error

    @property
    def port(self) -> int:
        """The port that it listens on; known after `start` when 0 was asked for."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connected(self) -> bool:
        """Whether it listens."""
        return self._server is not None and self._server.is_serving()

    @property
    def writers(self) -> int:
        """Sidecars that are connected and welcome."""
        return len(self._writers)

    @property
    def happened(self) -> Mapping[str, int]:
        """Connections that were turned away by reason, and memories that were."""
        return {**self.refused, "memory-refused": self.memories.refused}

    @property
    def held(self) -> Mapping[str, int]:
        return {"writers": self.writers, "memory-bytes": self.memories.bytes}

    def reread(self, endpoints: Iterable[EndpointId]) -> None:
        """Let those writers connect anew, which begins with a snapshot."""
        for endpoint in endpoints:
            writer = self._writers.get(endpoint)
            if writer is not None:
                writer.refuse("gap")

    @property
    def behind_s(self) -> float:
        return self._behind_s

    async def records(self) -> AsyncIterator[list[bytes]]:
        loop = asyncio.get_running_loop()
        abreast = Abreast(loop.time())
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._arrived.wait()
            self._arrived.clear()
            records, self._records = self._records, []
            self._behind_s = abreast.looked(loop.time(), found=bool(records))
            if not records:
                continue
            for connection in self._connections:
                connection.taken()
            yield records

    def ask_again(self) -> None:
        """Cut all writers: they come back within moments, and begin with all they know."""
        for connection in list(self._connections):
            connection.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for connection in list(self._connections):
                connection.abort()
            await self._server.wait_closed()

    # Called by connections

    def opened(self, connection: "_Connection") -> bool:
        if len(self._connections) >= self.limits.connections:
            self.count("full")
            return False
        self._connections.add(connection)
        return True

    def lost(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        endpoint = connection.endpoint
        if endpoint is not None and self._writers.get(endpoint) is connection:
            del self._writers[endpoint]

    def count(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def welcome(self, connection: "_Connection", hello: pb.Hello) -> str:
        """Why this writer is refused; empty when it is welcome and the endpoint's only writer."""
        refused = self._refusal(connection, hello)
        if refused or hello.recall:
            return refused
        endpoint = EndpointId.parse(hello.endpoint)
        self._starts[endpoint] = hello.incarnation
        if len(self._starts) > 8 * self.limits.connections:
            self._starts = {e: s for e, s in self._starts.items() if self._is_member(e)}
            self.memories.retain(set(self._starts))
        older = self._writers.get(endpoint)
        self._writers[endpoint] = connection
        if older is not None:
            older.refuse(FENCED)
        return ""

    def _refusal(self, connection: "_Connection", hello: pb.Hello) -> str:
        if hello.version != VERSION:
            return "version"
        if not self._trusted(connection, hello.token):
            return "token"
        try:
            endpoint = EndpointId.parse(hello.endpoint)
        except ValueError:
            return "endpoint"
        if not self._is_member(endpoint):
            return "no-member"
        if hello.incarnation < self._starts.get(endpoint, 0):
            return FENCED
        return ""

    def _trusted(self, connection: "_Connection", token: str) -> bool:
        if self._token is None:
            return connection.on_loopback
        return hmac.compare_digest(token.encode(), self._token.encode())

    def arrived(self, records: list[bytes]) -> None:
        self._records.extend(records)
        self._arrived.set()


class _Connection(asyncio.Protocol):
    """One writer on the server's side. No task: it lives by its transport's calls."""

    def __init__(self, server: StateServer) -> None:
        self.endpoint: EndpointId | None = None
        self._incarnation: Incarnation | None = None
        self._memory = Assembly()
        self.on_loopback = False
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer()
        self._timer: asyncio.TimerHandle | None = None
        self._queued = 0
        self._heard_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave alike without being subclasses
        self._transport = cast("asyncio.Transport", transport)
        self.on_loopback = _is_loopback(transport.get_extra_info("peername"))
        if not self._server.opened(self):
            self.refuse("full")
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._server.limits.hello_s, self._hello_due)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._heard_at = asyncio.get_running_loop().time()
        try:
            frames = self._frames.feed(data)
        except StoreError:
            self._turn_away("too-large")
            return
        if frames and self.endpoint is None and not self._hello(frames.pop(0)):
            return
        try:
            records = [record for data in frames if (record := self._said(data)) is not None]
        except (DecodeError, UnicodeDecodeError):
            self._turn_away("damaged")
            return
        if records:
            self._queued += sum(map(len, records))
            if self._queued > self._server.limits.queued_bytes:
                self._transport.pause_reading()
            self._server.arrived(records)

    def _said(self, data: bytes) -> bytes | None:
        """The record in a frame; None for one that speaks of something else."""
        said = pb.Said()
        said.ParseFromString(data)
        if said.WhichOneof("what") == "memory" and self._incarnation is not None:
            piece = said.memory
            whole = self._memory.add(piece.piece, piece.index, last=piece.last)
            if whole is not None:
                self._server.memories.keep(self._incarnation, whole)
        return said.record if said.WhichOneof("what") == "record" else None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.lost(self)
        self._transport = None

    def taken(self) -> None:
        """All that this connection had queued is on its way to be applied."""
        self._queued = 0
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def refuse(self, reason: str) -> None:
        """Say why and close."""
        if self._transport is not None and not self._transport.is_closing():
            self._say(pb.Welcome(version=VERSION, refused=reason))
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _hello(self, data: bytes) -> bool:
        hello = pb.Hello()
        try:
            hello.ParseFromString(data)
        except (DecodeError, UnicodeDecodeError):
            self._turn_away("damaged")
            return False
        refused = self._server.welcome(self, hello)
        if refused:
            self._turn_away(refused)
            return False
        self._incarnation = Incarnation(EndpointId.parse(hello.endpoint), hello.incarnation)
        if hello.recall:
            self._recall(self._incarnation)
            return False
        self.endpoint = self._incarnation.endpoint
        self._say(pb.Welcome(version=VERSION, writers=self._server.writers))
        self._await_words()
        return True

    def _recall(self, incarnation: Incarnation) -> None:
        """Say the memory, and close."""
        assert self._transport is not None
        *first, last = pieces(self._server.memories.recall(incarnation))
        for piece in first:
            self._say(pb.Welcome(version=VERSION, memory=piece, more=True))
        self._say(pb.Welcome(version=VERSION, memory=last))
        self._transport.close()

    def _say(self, welcome: pb.Welcome) -> None:
        assert self._transport is not None
        self._transport.write(frame(welcome.SerializeToString()))

    def _turn_away(self, reason: str) -> None:
        self._server.count(reason)
        self.refuse(reason)

    def _hello_due(self) -> None:
        self._turn_away("slow")

    def _await_words(self) -> None:
        loop = asyncio.get_running_loop()
        silent = loop.time() - self._heard_at
        idle = self._server.limits.idle_s
        if silent >= idle:
            self._turn_away("idle")
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(idle - silent, self._await_words)


def _is_loopback(peer: object) -> bool:
    if not isinstance(peer, tuple) or not peer:
        return False
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
