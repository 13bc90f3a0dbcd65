"""Metrics pages that misbehave, on real ports."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


def page(**values: object) -> bytes:
    lines = [f'vllm:{name}{{engine="0",model_name="m"}} {value}' for name, value in values.items()]
    return "\n".join(lines).encode() + b"\n"


class MetricsPort:
    """One port. `mode` may change at any time: page, error, hang, trickle, flood, cut, redirect."""

    def __init__(self, text: bytes = b"") -> None:
        self.text = text
        self.mode = "page"
        self.requests = 0
        self.connections = 0
        self.open = 0
        self.most_open = 0
        self.port = 0
        self.paths: list[str] = []
        """Of all requests."""

    @property
    def path(self) -> str:
        """Of the last request."""
        return self.paths[-1] if self.paths else ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                self.paths.append(head.split()[1].decode())
                self.open += 1
                self.most_open = max(self.most_open, self.open)
                try:
                    await self._answer(reader, writer)
                finally:
                    self.open -= 1
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
        match self.mode:
            case "page":
                writer.write(head % len(self.text) + self.text)
            case "error":
                writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
            case "redirect":
                writer.write(b"HTTP/1.1 302 No\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n")
            case "hang":
                await reader.read()  # until the client gives up
            case "cut":
                writer.write(head % 1_000 + b"vllm:num")
                writer.close()
            case "trickle":
                writer.write(head % 1_000_000)
                while not writer.is_closing():
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.05)
            case "flood":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while not writer.is_closing():
                    writer.write(b"10000\r\n" + b"y" * 65_536 + b"\r\n")
                    await writer.drain()
        await writer.drain()


@asynccontextmanager
async def serving(port: MetricsPort) -> AsyncIterator[MetricsPort]:
    tasks: set[asyncio.Task[None]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await port._serve(reader, writer)
        except asyncio.CancelledError:
            writer.close()
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(accepted, "127.0.0.1", port.port)
    port.port = server.sockets[0].getsockname()[1]
    try:
        yield port
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
