"""Ask a local port whether whoever listens there is ready. Each question takes a second at most."""

import asyncio
from collections.abc import Awaitable, Callable

from .ports import HOST

Probe = Callable[[], Awaitable[bool]]
LIMIT_S = 1.0
_FIRST_LINE = 256


def http(port: int, path: str) -> Probe:
    """Ready when a GET is answered with 200."""
    request = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"

    async def probe() -> bool:
        return b" 200 " in await _ask(port, request.encode("ascii"))

    return probe


def redis(port: int) -> Probe:
    """Ready when a PING is answered: not while it loads or lacks memory."""

    async def probe() -> bool:
        return await _ask(port, b"PING\r\n") == b"+PONG\r\n"

    return probe


def listening(port: int) -> Probe:
    """Ready when a connection is accepted."""

    async def probe() -> bool:
        return await _ask(port, b"") is not _REFUSED

    return probe


_REFUSED = b"(refused)"


async def _ask(port: int, question: bytes) -> bytes:
    """The first line of the answer, `_REFUSED` when nobody takes the question."""
    try:
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection(HOST, port, limit=_FIRST_LINE)
            try:
                writer.write(question)
                return await reader.readline() if question else b""
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):  # ValueError: a line longer than the limit
        return _REFUSED
