"""Field faults of what a sidecar's clients hold before any of them has asked for something."""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop

from sidecar.proxy import Limits, Relay
from sidecar.relay import handshakes
from sidecar.trust.tls import TlsFiles, client_context, server_context
from tests.fakes.certificates import Authority
from tests.fakes.relays import Rig, relay_to
from tests.fakes.upstreams import RawUpstream, answer
from tests.fakes.waiting import until
from tests.timing import scaled

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass
class House:
    """A relay on a port that speaks TLS."""

    rig: Rig
    believes: ssl.SSLContext

    @property
    def relay(self) -> Relay:
        return self.rig.relay

    async def ask(self) -> bytes:
        """The answer to a whole request."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.rig.port, ssl=self.believes
        )
        writer.write(GET)
        try:
            return await reader.readuntil(b"{}")
        finally:
            writer.close()

    @asynccontextmanager
    async def silent(self, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
        """Clients that connect and say nothing."""
        clients = [await self.rig.connect() for _ in range(count)]
        try:
            yield [reader for reader, _ in clients]
        finally:
            for _, writer in clients:
                writer.close()

    async def is_cut(self, reader: asyncio.StreamReader) -> bool:
        """Whether the relay ends this connection; it says nothing before."""
        async with asyncio.timeout(scaled(5)):
            try:
                return await reader.read(1) == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def house(directory: Path, limits: Limits) -> AsyncIterator[House]:
    authority = Authority(directory, "pool")
    cert, key = authority.signs("sidecar")
    upstream = RawUpstream(answer(b"{}"))
    tls = server_context(TlsFiles(cert=cert, key=key))
    async with upstream.running(), relay_to(upstream.port, limits, tls=tls) as rig:
        yield House(rig, client_context(TlsFiles(ca=authority.ca)))


def play(loop: str, scene: Callable[[], Awaitable[None]]) -> None:
    """On this kind of loop: uvloop's is that of production."""

    async def whole() -> None:
        await scene()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(whole())


@pytest.mark.parametrize("loop", LOOPS)
def test_G05_handshakes_that_nobody_finishes_count_as_connections(
    tmp_path: Path, loop: str
) -> None:
    """Protected by `OwnRelay.enter`; red when only connections whose handshake is over are counted,
    as servers of asyncio tell them: clients that say nothing hold any number of sockets."""

    async def scene() -> None:
        limits = Limits(max_connections=3, handshake_timeout_s=600)
        async with house(tmp_path, limits) as here:
            async with here.silent(3):
                await until(lambda: here.relay.connections == 3)
                async with here.silent(4) as more:
                    for reader in more:
                        assert await here.is_cut(reader)
                assert (here.relay.connections, here.relay.refused) == (3, 4)
            await until(lambda: here.relay.connections == 0)
            assert (await here.ask()).startswith(b"HTTP/1.1 200")
            await until(lambda: here.relay.connections == 0)

    play(loop, scene)


@pytest.mark.parametrize("loop", LOOPS)
def test_G05_a_handshake_has_its_time_and_no_more(tmp_path: Path, loop: str) -> None:
    """Protected by `handshake_timeout_s` in `Door._shake`; red with what asyncio gives: silent
    clients keep the others out for a minute."""

    async def scene() -> None:
        limits = Limits(max_connections=2, handshake_timeout_s=scaled(0.3))
        async with house(tmp_path, limits) as here, here.silent(2) as readers:
            for reader in readers:
                assert await here.is_cut(reader)
            await until(lambda: here.relay.connections == 0)
            assert (await here.ask()).startswith(b"HTTP/1.1 200")

    play(loop, scene)


@pytest.mark.parametrize("loop", LOOPS)
def test_G05_whoever_speaks_no_tls_is_forgotten(tmp_path: Path, loop: str) -> None:
    """Protected by `OwnRelay.settle`; red without it: after as many health checks in plain text as
    there may be connections nobody is served any more."""

    async def scene() -> None:
        limits = Limits(max_connections=2, handshake_timeout_s=600)
        async with house(tmp_path, limits) as here:
            for _ in range(5):
                reader, writer = await here.rig.connect()
                writer.write(GET)
                with suppress(ConnectionError):
                    assert not (await reader.read()).startswith(b"HTTP")
                writer.transport.abort()
                await until(lambda: here.relay.connections == 0)
            assert (await here.ask()).startswith(b"HTTP/1.1 200")
            assert here.relay.refused == 0

    play(loop, scene)


@pytest.mark.parametrize("loop", LOOPS)
def test_G05_a_sidecar_without_descriptors_waits_for_one(
    tmp_path: Path, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protected by `Door._pause`; red without it: a core goes into asking again and again."""
    accept, full = socket.socket.accept, [True]
    asked: list[socket.socket] = []

    async def scene() -> None:
        async with house(tmp_path, Limits()) as here:

            def short_of_descriptors(listening: socket.socket) -> tuple[socket.socket, object]:
                if full and listening.getsockname()[1] == here.rig.port:
                    asked.append(listening)
                    raise OSError(errno.EMFILE, "too many open files")
                return accept(listening)

            monkeypatch.setattr(socket.socket, "accept", short_of_descriptors)
            monkeypatch.setattr(handshakes, "PAUSE_S", 0.2)
            async with here.silent(1):
                await until(lambda: asked)
                await asyncio.sleep(0.3)
                assert len(asked) < 10
                full.clear()
                assert (await here.ask()).startswith(b"HTTP/1.1 200")

    play(loop, scene)
