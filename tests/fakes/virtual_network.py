"""Connections in virtual time between the parts of one process, which fail on demand.

Bytes arrive in order and at once, or not at all while the network stalls; it may cut all
connections, and refuse new ones.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

Factory = Callable[[], asyncio.Protocol]


class Network:
    """One place where somebody may listen. Stands in for a loop's own connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_up = True
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._loop = loop
        self._listening: Factory | None = None
        self._ends: list[End] = []
        self._due = False

    async def create_server(self, factory: Factory, host: str, port: int) -> "Listener":
        self._listening = factory
        return Listener(self)

    async def create_connection(
        self, factory: Factory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await self.flowing.wait()
        if not self.is_up or self._listening is None:
            raise ConnectionRefusedError
        near, far = End(self, factory()), End(self, self._listening())
        near.other, far.other = far, near
        self._ends += (near, far)
        for end in (far, near):
            end.protocol.connection_made(end)
        return near, near.protocol

    def close(self) -> None:
        self._listening = None

    def stall(self) -> None:
        self.flowing.clear()

    def go_on(self) -> None:
        self.is_up = True
        self.flowing.set()
        self.wake()

    def cut(self) -> None:
        """All connections break; both ends notice."""
        for end in list(self._ends):
            end.lose()

    def wake(self) -> None:
        """Something may move."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._move)

    def _move(self) -> None:
        self._due = False
        if self.flowing.is_set():
            for end in list(self._ends):
                end.deliver()
        self._ends = [end for end in self._ends if not (end.is_lost and end.other.is_lost)]


class Listener:
    """What the loop gives to who listens."""

    def __init__(self, network: Network) -> None:
        self._network: Network | None = network

    def is_serving(self) -> bool:
        return self._network is not None

    def close(self) -> None:
        if self._network is not None:
            self._network.close()
        self._network = None

    async def wait_closed(self) -> None:
        """Nothing is left to do."""


class End(asyncio.Transport):
    """One side of a connection."""

    ROOM: ClassVar = 4096
    """Bytes under way, above which the protocol is told to wait."""
    other: "End"

    def __init__(self, network: Network, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.protocol = protocol
        self.is_lost = False
        self._network = network
        self._sent: deque[bytes] = deque()
        self._closing = self._reads_not = self._full = False

    def write(self, data: Any) -> None:
        if not self._closing and not self.is_lost:
            self._sent.append(bytes(data))
            self._measure()
            self._network.wake()

    def is_closing(self) -> bool:
        return self._closing or self.is_lost

    def close(self) -> None:
        self._closing = True
        self._network.wake()

    def abort(self) -> None:
        self._sent.clear()
        self.lose()

    def pause_reading(self) -> None:
        self._reads_not = True

    def resume_reading(self) -> None:
        self._reads_not = False
        self._network.wake()

    def deliver(self) -> None:
        """Hand over all that the other side takes, and at the end that nothing more will come."""
        other = self.other
        while self._sent and (other.is_closing() or not other._reads_not):
            data = self._sent.popleft()
            if not other.is_closing():
                other.protocol.data_received(data)
        self._measure()
        if (self._closing or self.is_lost) and not self._sent:
            self.lose()
            other.lose()

    def lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.protocol.connection_lost(None)
            self._network.wake()

    def _measure(self) -> None:
        full = sum(map(len, self._sent)) > self.ROOM
        if full is not self._full and not self.is_lost:
            self._full = full
            self.protocol.pause_writing() if full else self.protocol.resume_writing()
