"""The sidecar's way to a picker's state port: one connection, over which all is said in order."""

import asyncio
from typing import cast

from google.protobuf.message import DecodeError

from epp._pb import state_pb2 as pb
from epp.errors import Fenced, StoreError
from epp.framework import Incarnation

from . import Saved
from .frames import FrameBuffer, frame
from .memories import pieces
from .memory import FENCED, VERSION


class StateWriter:
    """Writer over one connection to a picker's state port. A call takes `timeout_s` at most."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        token: str | None = None,
        timeout_s: float = 2.0,
    ) -> None:
        self._host = host
        self._port = port
        self._token = token or ""
        self._timeout_s = timeout_s
        self._line: _Line | None = None

    @property
    def writers(self) -> int:
        return 1 if self._line is None else max(1, self._line.writers)

    async def recall(self, incarnation: Incarnation) -> bytes | None:
        await self._greet(self._hello(incarnation, recall=True))
        line = self._line
        assert line is not None
        self._line = None
        line.close()
        if line.refused == FENCED:
            return None
        if line.refused or not line.remembered:
            raise StoreError(f"the state port did not recall: {line.refused or 'connection lost'}")
        return line.memory or None

    async def claim(self, incarnation: Incarnation, nonce: int) -> None:
        await self._greet(self._hello(incarnation, nonce=nonce))
        self._check()

    async def append(self, record: bytes) -> None:
        await self._send(pb.Said(record=record))

    async def save(self, saved: Saved) -> None:
        for part in saved.parts:
            await self._send(pb.Said(record=part))
        said = pieces(saved.memory)
        for index, piece in enumerate(said):
            last = index == len(said) - 1
            await self._send(pb.Said(memory=pb.Memory(piece=piece, index=index, last=last)))

    def _hello(self, incarnation: Incarnation, *, nonce: int = 0, recall: bool = False) -> pb.Hello:
        return pb.Hello(
            version=VERSION,
            endpoint=str(incarnation.endpoint),
            token=self._token,
            incarnation=incarnation.start_ms,
            nonce=nonce,
            recall=recall,
        )

    async def _greet(self, hello: pb.Hello) -> None:
        """A new connection, up to the answer to its first frame."""
        await self.close()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                _, self._line = await loop.create_connection(_Line, self._host, self._port)
                self._line.send(frame(hello.SerializeToString()))
                await self._line.answered.wait()
        except (OSError, TimeoutError) as error:
            await self.close()
            raise StoreError(f"state port {self._host}:{self._port} cannot be reached") from error

    async def _send(self, said: pb.Said) -> None:
        if self._line is None:
            raise StoreError("claim first: there is no connection to the state port")
        self._check()
        try:
            self._line.send(frame(said.SerializeToString()))
            async with asyncio.timeout(self._timeout_s):
                await self._line.drained.wait()
        except TimeoutError as error:
            await self.close()
            raise StoreError("the state port does not take any more") from error
        self._check()

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _check(self) -> None:
        line = self._line
        if line is None or (not line.lost and not line.refused):
            return
        self._line = None
        line.close()
        if line.refused == FENCED:
            raise Fenced("another writer, or a later life of the engine, took over")
        raise StoreError(
            f"the state port refused us: {line.refused}" if line.refused else "connection lost"
        )


class _Line(asyncio.Protocol):
    """The writer's side of a connection."""

    def __init__(self) -> None:
        self.refused = ""
        self.lost = False
        self.writers = 0
        """How many there are, as the port said with its welcome."""
        self.memory = b""
        self.remembered = False
        """All of the memory has come."""
        self.answered = asyncio.Event()
        self.drained = asyncio.Event()
        self.drained.set()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for answer in self._frames.feed(data):
                welcome = pb.Welcome()
                welcome.ParseFromString(answer)
                self.refused = welcome.refused or self.refused
                self.writers = welcome.writers
                self.memory += welcome.memory
                self.remembered = not welcome.more
                if self.remembered:
                    self.answered.set()
        except (StoreError, DecodeError, UnicodeDecodeError):
            self.refused = "not a state port"
            self.answered.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.answered.set()
        self.drained.set()

    def pause_writing(self) -> None:
        self.drained.clear()

    def resume_writing(self) -> None:
        self.drained.set()

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort() if not self.drained.is_set() else self._transport.close()
