"""A decision that names nobody, through a real Envoy: the gateway balances by itself."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from epp import protocol
from epp.sim.gateway.envoy import EnvoySettings, Shape
from tests.fakes.director import route
from tests.fakes.picked_gateway import rig
from tests.fakes.waiting import until

REQUESTS = 20
BODY = b'{"model":"m","prompt":"hello"}'


@pytest.mark.parametrize("shape", ["standalone", "full-duplex", "buffered", "headers-only"])
async def test_requests_go_round_robin_whatever_a_client_says(tmp_path: Path, shape: Shape) -> None:
    async with (
        rig(tmp_path, shape) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = lambda _: route(None, set_headers=(("x-kept", "yes"),))
        headers = {protocol.DESTINATION: here.backends[0].address}
        for _ in range(REQUESTS):
            async with client.post("/v1/completions", data=BODY, headers=headers) as response:
                assert response.status == 200
                await response.read()
        # Envoy counts from a random place, and each of its threads for itself.
        counts = Counter({one.address: len(one.seen) for one in here.backends})
        assert counts.total() == REQUESTS
        assert min(counts.values()) >= REQUESTS // 4
        for backend in here.backends:
            for seen in backend.seen:
                assert seen.body == BODY
                assert seen.values(protocol.DESTINATION) == []
                assert seen.values("x-kept") == ["yes"]
        await until(lambda: len(here.director.progresses) == REQUESTS)
        told = Counter(progress.events[0][2] for progress in here.director.progresses)
        assert told == counts, "the gateway still says who served"
        assert here.picker.counts.faults == 0
        assert await here.gateway.ext_proc("spurious_msgs_received") == 0


async def test_a_retry_still_finds_another_endpoint(tmp_path: Path) -> None:
    async with (
        rig(tmp_path, more_endpoints=("127.0.0.1:1",)) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = lambda _: route(None)
        for _ in range(REQUESTS):
            async with client.post("/v1/completions", data=BODY) as response:
                assert response.status == 200


async def test_original_dst_has_nowhere_to_go_without_a_name(tmp_path: Path) -> None:
    """Why docs/operations.md says that `shadow` is not for that shape."""

    def without_retries(settings: EnvoySettings) -> EnvoySettings:
        return replace(settings, retries=False)

    async with (
        rig(tmp_path, "original-dst", settings=without_retries) as here,
        aiohttp.ClientSession(here.gateway.url) as client,
    ):
        here.director.script = lambda _: route(None)
        headers = {protocol.DESTINATION: here.backends[0].address}
        async with client.post("/v1/completions", data=BODY, headers=headers) as response:
            assert response.status == 503
        assert [each.seen for each in here.backends] == [[], []]
