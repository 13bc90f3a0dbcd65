"""A Redis that knows who is connected to it: it reads commands, and answers each with one answer.

A Sentinel and a Cluster's only node as well: both name this server itself.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from epp.state.store.scripts import DONE
from tests.fakes.chains import until


class RespServer:
    """Any script is told that it was done, as one of our writers' is."""

    def __init__(self) -> None:
        self.opened = 0
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def where(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def lines(self) -> int:
        """Lines that are open just now."""
        return len(self._open)

    def hang_up(self) -> None:
        for line in self._open:
            line.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.opened += 1
        try:
            while words := await _command(reader):
                writer.write(self._answer(words))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    def _answer(self, words: list[bytes]) -> bytes:
        match b" ".join(words[:2]).upper().split():
            case [b"CLUSTER", b"SLOTS"]:
                return b"*1\r\n*3\r\n:0\r\n:16383\r\n" + self._named()
            case [b"SENTINEL", *_]:
                return b"*2\r\n$9\r\n127.0.0.1\r\n" + _bulk(b"%d" % self.port)
            case [b"SCRIPT", *_]:
                return _bulk(b"0" * 40)
            case [b"EVALSHA", *_]:
                return b"*3\r\n:%d\r\n" % DONE + _bulk(b"0-1") + b":1\r\n"
            case [b"PING", *_]:
                return b"+PONG\r\n"
            case _:
                return b"+OK\r\n"

    def _named(self) -> bytes:
        return b"*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % self.port


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    """The words of the next one; empty at the end."""
    head = await reader.readline()
    words = []
    for _ in range(int(head[1:] or b"0")):
        size = int((await reader.readline())[1:])
        words.append((await reader.readexactly(size + 2))[:-2])
    return words


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[RespServer]:
    told = RespServer()
    server = await asyncio.start_server(told.serve, "127.0.0.1", 0)
    told.port = server.sockets[0].getsockname()[1]
    async with server:
        yield told
        told.hang_up()
        await until(lambda: not told.lines)
