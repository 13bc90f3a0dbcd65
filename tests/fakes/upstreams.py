"""Small engines on raw sockets that answer exactly the bytes a test says."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Received:
    """One request as it came over the wire."""

    head: bytes
    body: bytes = b""
    connection: int = 0

    @property
    def line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.split(b"\r\n")[1:]
        return [
            (name.lower(), value.strip())
            for name, _, value in (line.partition(b":") for line in lines if line)
        ]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]


@dataclass
class Conversation:
    """What a script writes its answer with."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    request: Received

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Conversation], Awaitable[None]]


def answer(
    body: bytes = b"{}", *, status: bytes = b"200 OK", fields: bytes = b"", length: bool = True
) -> Script:
    """A script that sends one fixed answer."""
    extra = b"Content-Length: %d\r\n" % len(body) if length else b""
    head = b"HTTP/1.1 " + status + b"\r\n" + extra + fields + b"\r\n"

    async def script(talk: Conversation) -> None:
        await talk.send(head + body)

    return script


@dataclass
class RawUpstream:
    """An engine that runs `script` for each request; `close_after` ends a connection early."""

    script: Script
    read_body: bool = True
    close_after: int | None = None
    idle_close_s: float | None = None
    tls: ssl.SSLContext | None = None
    received: list[Received] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the other side closed a connection."""
    connections: int = 0
    port: int = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number, served = self.connections, 0
        try:
            while self.close_after is None or served < self.close_after:
                async with asyncio.timeout(self.idle_close_s):
                    head = await reader.readuntil(b"\r\n\r\n")
                request = Received(head[:-4], connection=number)
                self.received.append(request)
                if self.read_body:
                    request.body = await _body(reader, request)
                await self.script(Conversation(reader, writer, request))
                served += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        except (TimeoutError, asyncio.CancelledError):
            pass  # idle for long enough, or the test is over
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator["RawUpstream"]:
        server = await asyncio.start_server(
            self._serve, "127.0.0.1", port, backlog=1024, ssl=self.tls
        )
        self.port = server.sockets[0].getsockname()[1]
        tasks_before = asyncio.all_tasks()
        try:
            yield self
        finally:
            server.close()
            mine = [
                task
                for task in asyncio.all_tasks() - tasks_before
                if getattr(task.get_coro(), "cr_code", None) is RawUpstream._serve.__code__
            ]
            for task in mine:
                task.cancel()
            await asyncio.gather(*mine, return_exceptions=True)


async def _body(reader: asyncio.StreamReader, request: Received) -> bytes:
    length = request.values(b"content-length")
    if length:
        return await reader.readexactly(int(length[0]))
    if b"chunked" not in request.values(b"transfer-encoding"):
        return b""
    body = b""
    while size := int(await _line(reader), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await _line(reader)
    return body


async def _line(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n")
