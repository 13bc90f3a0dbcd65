"""A gateway in front of ours that sends a request again: two real Envoys, one after the other."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from epp import protocol
from epp.sim.gateway.envoy import EnvoySettings
from epp.sim.gateway.routes import EVERY_PATH
from epp.state.endpoints import Member
from tests.fakes.backend import raw_backend
from tests.fakes.desk import Desk, ask, open_desk
from tests.fakes.gateway import Gateway, gateway
from tests.fakes.picked_gateway import rig
from tests.fakes.waiting import until

BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"
TIMEOUT_S = 9.0


@asynccontextmanager
async def _two_gateways(directory: Path, *, trusted: bool) -> AsyncIterator[tuple[Gateway, Desk]]:
    """The one in front, and the picker's desk. Of two engines the first answers 503, and is the
    one that is asked first. `trusted`: ours believes the other's `x-envoy-` headers."""
    async with (
        raw_backend(BUSY) as (failing, _),
        rig(
            directory / "ours",
            backends=1,
            more_endpoints=(failing,),
            settings=lambda usual: replace(usual, retries=False),
            edit=_edited(_believing if trusted else lambda _: None),
        ) as here,
        gateway(
            directory / "in-front",
            EnvoySettings(
                listen_port=0,
                admin_port=0,
                ext_proc_port=0,
                shape="none",
                endpoints=[f"127.0.0.1:{here.gateway.port}"],
                api_paths=EVERY_PATH,
            ),
            edit=_edited(_foreign),
        ) as outer,
        open_desk(2) as desk,
    ):
        addresses = (failing, here.backends[0].address)
        members = [
            Member(id=member.id, address=address)
            for member, address in zip(desk.members, addresses, strict=True)
        ]
        desk.pool.replace(members, desk.now)
        desk.report([0, 3])
        here.director.script = desk.director.decide
        yield outer, desk
        await until(lambda: here.picker.counts.live == 0)
        ids = [one.headers[protocol.REQUEST_ID] for one in here.director.arrivals]
        assert ids == ["one"] * 2, "Envoy keeps the id when it tries again"


@pytest.mark.parametrize("trusted", [True, False])
async def test_what_a_gateway_sends_again_is_one_request_with_one_deadline(
    tmp_path: Path, trusted: bool
) -> None:
    async with (
        _two_gateways(tmp_path, trusted=trusted) as (outer, desk),
        aiohttp.ClientSession(outer.url) as client,
    ):
        headers = {"x-llm-d-slo-ttft-ms": "5000", protocol.REQUEST_ID: "one"}
        body = ask("words " * 50)
        async with client.post("/v1/completions", json=body, headers=headers) as response:
            assert (response.status, await response.text()) == (200, "b0")

        (first, asked, _), (second, again, _) = desk.witness.decisions
        bad, good = (member.id for member in desk.members)
        assert (first.chosen[0].id, second.chosen[0].id) == (bad, good)
        assert (again.attempt, again.failed_at) == (2, (bad,))
        assert second.left_out == {"failed before": 1}
        assert asked.slo_ttft_s == 5.0
        loads = {one.id: one.load.reserved_requests for one in desk.pool.ready(desk.now)}
        assert loads == {bad: 0, good: 1}, "as after any answer that no sidecar speaks of"
        if trusted:
            assert asked.timeout_s is not None
            assert again.timeout_s is not None
            assert TIMEOUT_S / 2 < again.timeout_s < asked.timeout_s <= TIMEOUT_S
        else:
            assert asked.timeout_s is again.timeout_s is None, "a stranger's is taken out"


def _edited(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    """A bootstrap whose connection manager was changed."""

    def edit(bootstrap: str) -> str:
        found = json.loads(bootstrap)
        (chain,) = found["static_resources"]["listeners"][0]["filter_chains"]
        change(chain["filters"][0]["typed_config"])
        return json.dumps(found)

    return edit


def _foreign(manager: dict[str, Any]) -> None:
    """Not one of ours: it hands on what those behind it read, and waits for a while only."""
    manager["skip_xff_append"] = True
    for host in manager["route_config"]["virtual_hosts"]:
        del host["request_headers_to_remove"]
        for route in host["routes"]:
            if "route" in route:
                route["route"]["timeout"] = f"{TIMEOUT_S:.0f}s"


def _believing(manager: dict[str, Any]) -> None:
    loopback = {"address_prefix": "127.0.0.1", "prefix_len": 32}
    manager["internal_address_config"] = {"cidr_ranges": [loopback]}
