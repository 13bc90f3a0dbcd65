"""Engines that take a connection and drop it before they were asked anything."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sidecar.http.client import Call
from sidecar.http.refusals import ENGINE_LOST, LegError
from sidecar.proxy import Limits
from sidecar.relay.pool import Engines
from tests.fakes.waiting import until
from tests.timing import scaled

RESET = struct.pack("ii", 1, 0)
CALL = Call("GET", "/", [], None)


@asynccontextmanager
async def dropping() -> AsyncIterator[int]:
    """The port of a server that resets what connects."""

    def drop(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken = writer.get_extra_info("socket")
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_connection_that_is_lost_before_it_is_asked_says_so_at_once() -> None:
    async with dropping() as port, Engines(f"http://127.0.0.1:{port}", Limits()) as engines:
        line = await engines.fresh()
        await until(lambda: line.lost)
        with pytest.raises(LegError) as failed:
            async with asyncio.timeout(scaled(5)):
                await line.ask(CALL)
        assert failed.value.refused is ENGINE_LOST
        assert engines.connections == 0


async def test_engines_that_drop_all_that_comes_fail_each_request_and_keep_no_connection() -> None:
    async with dropping() as port, Engines(f"http://127.0.0.1:{port}", Limits()) as engines:
        for _ in range(50):
            with pytest.raises(LegError):
                async with asyncio.timeout(scaled(5)):
                    await engines.send(CALL)
        await until(lambda: not engines.connections)
        assert engines.spares == 0
