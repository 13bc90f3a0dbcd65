"""A picker that decides nothing: what ext_proc itself costs.

It runs on the same transport as the real picker and exists to be measured against.
"""

import asyncio
import itertools
import signal
from collections.abc import Sequence

from epp.bodies.usage import Usage
from epp.observe.health import Health
from epp.request.exchange import Arrival, Outcome, Route
from epp.request.transport import grpc as transport


class Unwatched:
    """Progress that nobody is interested in."""

    def response_headers(
        self, status: int, served: str | None, *, streaming: bool = False
    ) -> Sequence[tuple[str, str]]:
        return ()

    def body(self, size: int) -> None: ...

    def usage(self, usage: Usage) -> None: ...

    def finished(self) -> None: ...

    def reset(self, *, answered: bool) -> None: ...


class FixedDirector:
    """Sends each request to the next of `destinations` (`ip:port`), in turn."""

    def __init__(self, destinations: Sequence[str]) -> None:
        self._next = itertools.cycle(destinations)

    async def decide(self, arrival: Arrival) -> Outcome:
        return Route(destination=next(self._next), progress=Unwatched())


async def serve(grpc_port: int, destinations: Sequence[str]) -> None:
    """Serve ext_proc in plaintext on loopback until SIGTERM or SIGINT. Raises EppError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    director = FixedDirector(destinations)
    health = Health()
    health.ready = True
    async with transport.serve(
        director, host="127.0.0.1", port=grpc_port, handlers=[health.handler()]
    ):
        await stop.wait()
