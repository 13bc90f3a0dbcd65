"""A picker that knows one answer: what ext_proc itself costs, without any decision.

It runs on the same transport as the real picker and exists to be measured against.
"""

import asyncio
import signal
from dataclasses import dataclass

from epp.request.exchange import Arrival, Outcome, Route
from epp.request.transport import grpc as transport


class Unwatched:
    """Progress that nobody is interested in."""

    def response_headers(self, status: int, served: str | None) -> None: ...

    def first_body(self) -> None: ...

    def finished(self) -> None: ...

    def reset(self, *, answered: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class FixedDirector:
    """Sends every request to `destination` (`ip:port`)."""

    destination: str

    async def decide(self, arrival: Arrival) -> Outcome:
        return Route(destination=self.destination, progress=Unwatched())


async def serve(grpc_port: int, destination: str) -> None:
    """Serve ext_proc in plaintext on loopback until SIGTERM or SIGINT. Raises EppError."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    director = FixedDirector(destination)
    async with transport.serve(director, host="127.0.0.1", port=grpc_port):
        await stop.wait()
