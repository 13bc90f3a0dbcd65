"""HTTP backends behind a gateway: they remember what reached them and answer as they are told."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the backend got it. `headers` keeps repeated ones."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


@dataclass(slots=True)
class Backend:
    """Answers `/echo` with the request's body, `/sse?n=` with n events, `/empty` with 204,
    `/status/<code>` with that status, and everything else with its own name, `/late/<seconds>` so
    much later."""

    name: str
    port: int = 0
    seen: list[Seen] = field(default_factory=list[Seen])
    event_pause_s: float = 0.0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = tuple((key.lower(), value) for key, value in request.headers.items())
        self.seen.append(Seen(request.method, request.path_qs, headers, body))
        if request.path == "/echo":
            return web.Response(body=body, content_type="application/octet-stream")
        if request.path == "/sse":
            return await self._events(request)
        if request.path == "/empty":
            return web.Response(status=204)
        if request.path.startswith("/status/"):
            return web.Response(status=int(request.path.rpartition("/")[2]), text=self.name)
        if request.path.startswith("/late/"):
            await asyncio.sleep(float(request.path.rpartition("/")[2]))
        return web.Response(text=self.name)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(int(request.query["n"])):
            await response.write(b'data: {"token": %d}\n\n' % number)
            await asyncio.sleep(self.event_pause_s)
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def backend(name: str) -> AsyncIterator[Backend]:
    """A backend on a free port."""
    fake = Backend(name)
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{tail:.*}", fake.answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fake.port = runner.addresses[0][1]
        yield fake
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_backend(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A backend that says exactly `answer` to each request; gives its address and what it read.

    For framing that no HTTP library lets one write or see, such as trailers.
    """
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"transfer-encoding: chunked" in head.lower():
                head += await _chunked(reader)
            elif declared := re.search(rb"content-length: (\d+)", head.lower()):
                head += await reader.readexactly(int(declared[1]))
            seen.append(head)
            writer.write(answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # a connection that was opened for nothing, or given up
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        server.close()
        await server.wait_closed()


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    """A whole chunked body with its trailers, as on the wire."""
    out = b""
    while True:
        size = await reader.readuntil(b"\r\n")
        out += size
        if int(size, 16) == 0:
            break
        out += await reader.readexactly(int(size, 16) + 2)
    while not out.endswith(b"\r\n\r\n"):
        out += await reader.readuntil(b"\r\n")
    return out
