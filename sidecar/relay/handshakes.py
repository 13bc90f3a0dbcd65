"""The door of a port that speaks TLS: whoever stands in it counts among the connections.

A server of asyncio tells of a connection when its handshake is over, and of one that fails never:
clients that connect and say nothing would hold as many sockets as the system has. So this one
accepts by itself.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Sequence
from typing import Protocol

from .clients import ClientConnection, House

AT_ONCE = 100
"""Connections that are accepted in one turn of the loop."""
BACKLOG = 1024
PAUSE_S = 1.0
"""How long nothing is accepted when the system has no room for one more."""
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Hall(House, Protocol):
    """A house that counts who is at its door."""

    def enter(self, connection: ClientConnection) -> bool:
        """Whether there is room for one more, which is then counted."""

    def settle(self, connection: ClientConnection) -> None:
        """Its handshake is over: it was admitted, or is gone."""


class Door:
    """One listener. `open` it once; to `close` it again does nothing."""

    def __init__(
        self,
        hall: Hall,
        bound: Sequence[socket.socket],
        tls: ssl.SSLContext,
        *,
        on_leg_port: bool,
    ) -> None:
        """`bound`: non-blocking sockets, not listening yet, which are its own from here on."""
        self._hall = hall
        self._bound = bound
        self._tls = tls
        self._on_leg_port = on_leg_port
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._shaking: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Raises OSError."""
        for listening in self._bound:
            listening.listen(BACKLOG)
            self._accept_from(listening)

    def close(self) -> None:
        """Take nobody any more, and cut whoever has not finished."""
        for pause in self._pauses.values():
            pause.cancel()
        bound, self._bound = self._bound, ()
        for listening in bound:
            self._hall.loop.remove_reader(listening)
            listening.close()
        for task in self._shaking:
            task.cancel()

    def _accept_from(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        self._hall.loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted = listening.accept()[0]
            except OSError as error:  # nobody is there any more, as a rule
                if error.errno in _NO_ROOM:
                    self._pause(listening)
                return
            self._take(accepted)

    def _pause(self, listening: socket.socket) -> None:
        loop = self._hall.loop
        loop.remove_reader(listening)
        self._pauses[listening] = loop.call_later(PAUSE_S, self._accept_from, listening)

    def _take(self, accepted: socket.socket) -> None:
        connection = ClientConnection(self._hall, on_leg_port=self._on_leg_port)
        if not self._hall.enter(connection):
            accepted.close()
            return
        accepted.setblocking(False)
        task = self._hall.loop.create_task(self._shake(connection, accepted))
        self._shaking.add(task)
        task.add_done_callback(self._shaking.discard)

    async def _shake(self, connection: ClientConnection, accepted: socket.socket) -> None:
        try:
            await self._hall.loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=self._hall.limits.handshake_timeout_s,
            )
        except OSError:
            pass  # it spoke no TLS, showed no certificate that is believed, left, or was too slow
        finally:
            self._hall.settle(connection)
