"""Field faults of more than one: several pools behind one gateway, several replicas of one."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from epp.framework import Request
from epp.sim.gateway.envoy import EnvoySettings
from epp.sim.gateway.routes import EVERY_PATH, RoutedPool
from epp.sim.settings import CoreSettings
from epp.state.replicas import own
from tests.fakes.backend import Backend, backend
from tests.fakes.gateway import Gateway, gateway
from tests.fakes.picker_process import PickerProcess, cluster_process
from tests.fakes.virtual_fleet import GPU
from tests.fakes.virtual_replicas import ReplicatedFleet

POOLS = ("llama", "qwen")


@dataclass(slots=True)
class Pools:
    gateway: Gateway
    picker: PickerProcess
    engines: dict[str, list[Backend]]
    """Two of each pool."""

    def served(self) -> dict[str, int]:
        """Requests that each pool's engines have seen, by the host that clients asked for."""
        return Counter(
            f"{pool} {seen.values('host')[0].partition('.')[0]}"
            for pool, engines in self.engines.items()
            for engine in engines
            for seen in engine.seen
            if seen.method == "POST"
        )


@asynccontextmanager
async def _pools(directory: Path, *, named: bool = True) -> AsyncIterator[Pools]:
    """Two pools, one picker, one Envoy as `epp local gateway-config` writes it. `named`: Envoy says
    which pool it means, and the picker knows none by its host; else it has the hosts alone."""
    async with AsyncExitStack() as stack:
        engines = {
            pool: [await stack.enter_async_context(backend(f"{pool}-{n}")) for n in range(2)]
            for pool in POOLS
        }
        entries: list[dict[str, object]] = []
        for pool, members in engines.items():
            file = directory / f"{pool}.json"
            _write_members(file, members)
            flags = {"endpoints-file": str(file), "state-port": 0}
            hosts = [] if named else [f"{pool}.test"]
            entries.append({"name": pool, "hosts": hosts, "flags": flags})
        pools_file = directory / "pools.json"
        _write(pools_file, {"pools": entries})
        picker = await stack.enter_async_context(
            cluster_process(directory, "--pools-file", str(pools_file))
        )
        await picker.until_metric("llm_d_epp_ready_endpoints", 4)
        await picker.until_serving(True)
        settings = EnvoySettings(
            listen_port=0,
            admin_port=0,
            ext_proc_port=picker.ports["grpc"],
            endpoints=(),
            pools=[
                RoutedPool(
                    name=pool,
                    hosts=[f"{pool}.test"],
                    endpoints=[engine.address for engine in members],
                )
                for pool, members in engines.items()
            ],
            tls=False,
            api_paths=EVERY_PATH,
        )
        edit = str if named else _unnamed
        made = await stack.enter_async_context(gateway(directory, settings, edit=edit))
        yield Pools(made, picker, engines)


async def _ask(pools: Pools, host: str, count: int) -> list[int]:
    """The statuses of so many requests at once for a host."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}

    async def one(client: aiohttp.ClientSession) -> int:
        async with client.post("/v1/chat/completions", json=body, headers={"host": host}) as got:
            await got.read()
            return got.status

    async with aiohttp.ClientSession(pools.gateway.url) as client:
        return await asyncio.gather(*(one(client) for _ in range(count)))


async def _interleaved(pools: Pools) -> list[int]:
    """The statuses of 200 requests for both pools."""
    statuses: list[int] = []
    for _ in range(10):
        for answered in await asyncio.gather(*(_ask(pools, f"{pool}.test", 10) for pool in POOLS)):
            statuses += answered
    return statuses


async def test_F13_two_pools_behind_one_gateway_do_not_cross(tmp_path: Path) -> None:
    """Protected by `grpc_initial_metadata` of `modes.on`, and by `Pools.decide` that takes the
    gateway's word first: the picker knows no pool by these hosts. Red without either."""
    async with _pools(tmp_path) as pools:
        assert await _interleaved(pools) == [200] * 200
        assert pools.served() == {"llama llama": 100, "qwen qwen": 100}
        assert await pools.picker.metric('epp_endpoint_decisions_total{pool="qwen"') == 100
        assert await pools.picker.metric("epp_unknown_pool_total") == 0
        assert await _kept(pools) == {"llama": 100, "qwen": 100}


async def test_F13_the_host_tells_pools_apart_where_the_gateway_does_not(tmp_path: Path) -> None:
    """Protected by `Pools.of_host`; red without it."""
    async with _pools(tmp_path, named=False) as pools:
        assert await _interleaved(pools) == [200] * 200
        assert pools.served() == {"llama llama": 100, "qwen qwen": 100}


async def test_F11_what_one_replica_has_put_on_a_pod_the_other_counts() -> None:
    """One replica has eight requests on one of four pods, which has told nothing yet; of twelve
    more the other one has to spread, it gives that pod few. Protected by `PoolState.elsewhere`,
    which hands others' reservations to the load; red without that."""
    fleet = ReplicatedFleet(
        [CoreSettings(**GPU)] * 4, (("cost-scorer", 1.0, dict[str, object]()),), replicas=2
    )
    first, second = fleet.replicas.states
    (crowded, *_) = first.candidates((), block_tokens=64, prompt_tokens=4000, now=0.0)
    for number in range(8):
        first.charge(crowded, _request(f"a{number}"), 0.0)
    second.elsewhere([own("0", first.reserved(), first.foretold())], 0.05)
    fleet.replicas.ask_anyone = lambda: None  # type: ignore[method-assign]
    fleet.replicas._asked = second
    load = Counter({fleet.ids.index(crowded.id): 8})
    load.update(fleet.choose(_request(f"b{number}"), 0.05) for number in range(12))
    assert max(load.values()) <= 0.45 * load.total()


def _request(name: str) -> Request:
    return Request(
        id=name,
        api="completions",
        path="/v1/completions",
        model="m",
        prompt_tokens=4000,
        output_tokens=100,
    )


async def _kept(pools: Pools) -> dict[str, int]:
    """Decisions that the pages of each pool have."""
    admin = f"http://127.0.0.1:{pools.picker.ports['admin']}"
    kept: dict[str, int] = {}
    async with aiohttp.ClientSession() as client:
        async with client.get(f"{admin}/pools") as got:
            listed = [pool["name"] for pool in (await got.json())["pools"]]
        for pool in listed:
            async with client.get(f"{admin}/pools/{pool}/debug/decisions") as got:
                kept[pool] = (await got.json())["kept"]
    return kept


def _unnamed(bootstrap: str) -> str:
    """The same without the gateway's word."""
    config = json.loads(bootstrap)
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    for host in manager["typed_config"]["route_config"]["virtual_hosts"]:
        host["typed_per_filter_config"]["ext_proc"]["overrides"] = {}
    return json.dumps(config)


def _write_members(file: Path, engines: list[Backend]) -> None:
    entries = [
        {"name": engine.name, "address": "127.0.0.1", "port": engine.port, "sidecar": False}
        for engine in engines
    ]
    _write(file, {"endpoints": entries})


def _write(file: Path, value: object) -> None:
    file.write_text(json.dumps(value))
