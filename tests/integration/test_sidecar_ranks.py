"""Data parallel ranks of one pod: a sidecar for each, in one process, before real engines."""

import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.settings import SidecarSettings
from tests.fakes.engines import running_engine
from tests.fakes.sidecars import LogReader, quick_settings, running_sidecar
from tests.fakes.upstreams import RawUpstream, answer
from tests.fakes.waiting import until

RANKED: dict[str, Any] = {"pool": "default/pool", "name": "default/e0", "dp_size": 3}


def settings_of(**changes: Any) -> SidecarSettings:
    return SidecarSettings.model_validate({**RANKED, **changes})


def test_each_rank_has_the_ports_of_the_first_and_its_own_number_more() -> None:
    ranks = settings_of(port=8000, metrics_port=9092, engine_url="http://[::1]:8200").ranks
    assert [(one.port, one.metrics_port, one.dp_rank) for one in ranks] == [
        (8000, 9092, 0),
        (8001, 9093, 1),
        (8002, 9094, 2),
    ]
    assert [one.engine_url for one in ranks] == [f"http://[::1]:{8200 + r}" for r in range(3)]
    assert {one.ports.sidecar for one in ranks} == {8000}
    assert all(one.header_rank is None for one in ranks)


def test_one_engine_port_may_have_all_ranks() -> None:
    ranks = settings_of(dp_by_header=True).ranks
    assert {one.engine_url for one in ranks} == {"http://127.0.0.1:8200"}
    assert [one.header_rank for one in ranks] == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dp_rank": 1}, "--dp-size is for all ranks"),
        ({"dp_size": 1, "dp_by_header": True}, "names a rank"),
        ({"leg_port": 9000, "endpoints_file": "e.yaml"}, "--leg-key-file"),
        ({"kv_events": "ipc://x"}, "count ports up"),
        ({"port": 65_534}, "no ports for all ranks"),
    ],
)
def test_what_ranks_cannot_have_is_said_at_once(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        settings_of(**changes)


async def test_each_ranks_port_leads_to_its_own_engine() -> None:
    port = two_free_ports()
    async with (
        LogReader().running() as log,
        running_engine(name="rank0", port=port),
        running_engine(name="rank1", port=port + 1),
        running_sidecar(quick_settings(port, log.server.port, dp_size=2)),
        aiohttp.ClientSession() as session,
    ):
        await until(lambda: len(log.views) == 2)
        names = set()
        for endpoint in log.views:
            url = f"http://127.0.0.1:{endpoint.port}/v1/models"
            async with session.get(url) as response:
                names.add(response.headers["x-inference-pod"])
    assert names == {"rank0", "rank1"}


def two_free_ports() -> int:
    """The first of two ports in a row that nobody uses."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            with suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
                return port


@pytest.mark.usefixtures("each_relay")
async def test_the_rank_is_named_to_the_engine_and_a_clients_own_is_not_passed(
    tmp_path: Path,
) -> None:
    upstream = RawUpstream(answer(b"{}"))
    async with LogReader().running() as log, upstream.running() as engine:
        settings = quick_settings(engine.port, log.server.port, dp_rank=3, dp_by_header=True)
        async with running_sidecar(settings) as sidecar, aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{sidecar.port}/v1/completions"
            fields = {"x-data-parallel-rank": "7"}
            async with session.post(url, json={"prompt": "x"}, headers=fields) as response:
                assert response.status == 200
    (got,) = [one for one in upstream.received if one.line.startswith(b"POST /v1/completions")]
    assert got.values(b"x-data-parallel-rank") == [b"3"]
