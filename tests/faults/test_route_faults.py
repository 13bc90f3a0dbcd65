"""Field faults of a route: answers that take their time, and endpoints that take no connection."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.conformance.shipped import SHIPPED, Shipped
from tests.fakes.director import route
from tests.fakes.picked_gateway import rig


async def _answers(directory: Path, shipped: Shipped) -> list[tuple[int, bytes]]:
    """To a request whose answer begins after 20 s, and to one for a stream that is silent for 40 s,
    through a gateway of our own making."""
    async with (
        rig(directory, shipped.shape) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        for engine in here.backends:
            engine.event_pause_s = 40.0

        async def read(path: str) -> tuple[int, bytes]:
            async with client.get(path) as response:
                return response.status, await response.read()

        return list(await asyncio.gather(read("/late/20"), read("/sse?n=1")))


@pytest.mark.long
async def test_F09_slow_answers_and_silent_streams_are_not_cut(tmp_path: Path) -> None:
    """Protected by the route's timeout in `routes`, without which Envoy cuts after 15 s; red with
    that. All of our gateways at once, for it takes its time."""
    directories = [tmp_path / str(each) for each in SHIPPED]
    for directory in directories:
        directory.mkdir()
    every = await asyncio.gather(*map(_answers, directories, SHIPPED))
    wanted = [(200, b"b1"), (200, b'data: {"token": 0}\n\ndata: [DONE]\n\n')]
    assert every == [wanted] * len(SHIPPED)


async def test_F10_an_endpoint_that_refuses_is_skipped_and_who_served_is_told(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    """50 requests for a ready endpoint whose port refuses: another one serves each of them, and the
    picker is told which. Protected by the retries in `routes`; red without them."""
    dead = f"127.0.0.1:{unused_tcp_port}"
    async with (
        rig(tmp_path, more_endpoints=(dead,)) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = lambda _: route(dead)
        for _ in range(50):
            async with client.post("/echo", data=b"x") as response:
                assert (response.status, await response.read()) == (200, b"x")
        served = {progress.events[0][2] for progress in here.director.progresses}
    assert served <= {engine.address for engine in here.backends}
