"""A gRPC client that says on the wire what no library would: HTTP/2 frames by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from epp import protocol
from tests.timing import scaled

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
_END_HEADERS = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class H2Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator["H2Wire"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        wire = cls(reader, writer)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        wire._frame(SETTINGS, 0, 0, b"")
        try:
            yield wire
        finally:
            writer.transport.abort()

    def begin_call(self, stream: int) -> None:
        """Open an ext_proc stream; its number is odd, and larger than those before."""
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": protocol.EXT_PROC_METHOD,
            ":authority": "picker",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = b"".join(b"\x00%b%b" % (_text(n), _text(v)) for n, v in headers.items())
        self._frame(HEADERS, _END_HEADERS, stream, block)

    def data(self, stream: int, payload: bytes) -> None:
        self._frame(DATA, 0, stream, payload)

    async def until(self, wanted: Callable[[Frame], bool]) -> list[Frame]:
        """All frames up to one that is wanted. Fails when the connection ends before."""
        found: list[Frame] = []
        async with asyncio.timeout(scaled(5)):
            while not found or not wanted(found[-1]):
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3]))
                found.append(Frame(head[3], head[4], int.from_bytes(head[5:]), payload))
        return found

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        head = len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4)
        self._writer.write(head + payload)


def _text(text: str) -> bytes:
    """A string of a header block, not compressed; shorter than 127 bytes."""
    data = text.encode()
    return bytes((len(data),)) + data
