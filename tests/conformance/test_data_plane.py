"""The conformance suite's data-plane tests, in each of our configurations; see data_plane.toml."""

import copy
import itertools
import json
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from epp import protocol
from epp.request.conformance import NOT_SERVED
from epp.sim.gateway.clusters import TYPE
from epp.sim.gateway.envoy import EnvoySettings
from tests.conformance import data_plane
from tests.conformance.data_plane import LIST, Edit, each_configuration, many, plane
from tests.conformance.shipped import SHIPPED, Shipped
from tests.fakes.gateway import gateway

HOSTS = ("127.0.0.11", "127.0.0.12", "127.0.0.13")


def test_every_data_plane_test_of_the_suite_is_here_or_named() -> None:
    names = [entry["name"] for entry in (*LIST["test"], *LIST["only_status"])]
    assert len(names) == len(set(names)) == 14
    functions = {entry["function"] for entry in LIST["test"]}
    assert functions <= set(globals())
    configurations = {shipped.name for shipped in SHIPPED}
    for entry in LIST["test"]:
        assert set(entry.get("cannot", {})) <= configurations


@each_configuration("test_only_chosen_pods_answer")
async def test_only_chosen_pods_answer(tmp_path: Path, shipped: Shipped, can: bool) -> None:
    async with plane(tmp_path, shipped, *HOSTS) as here:
        for host in HOSTS:
            assert (await here.ask(host)).pod == host
        for count in (1, 2, 3):
            for chosen in itertools.combinations(HOSTS, count):
                size = 100 if chosen == HOSTS[:count] else 10
                answers = await many(size, 10, lambda chosen=chosen: here.ask(*chosen))
                assert {answer.status for answer in answers} == {200}
                assert {answer.pod for answer in answers} <= set(chosen)
                if size == 100:
                    assert {answer.pod for answer in answers} == set(chosen)
        assert (await here.ask("127.0.0.99")).status == 503


@pytest.mark.parametrize(
    "shipped", [each for each in SHIPPED if each.shape != "original-dst"], ids=str
)
async def test_of_a_list_of_chosen_pods_the_first_serves(tmp_path: Path, shipped: Shipped) -> None:
    """The list, and pods of it that are down, in detail: tests/integration/test_gateway_shapes."""
    async with plane(tmp_path, shipped, *HOSTS, destinations=3) as here:
        answers = await many(30, 10, lambda: here.ask(*HOSTS[:2]))
        assert {answer.pod for answer in answers} == set(HOSTS[:2])
        for answer in answers:
            first, second = json.loads(answer.text)["headers"][protocol.DESTINATION].split(",")
            assert first == answer.address == answer.said != second


@each_configuration("test_ranks_of_a_pod_are_chosen_by_port_and_pods_by_address")
async def test_ranks_of_a_pod_are_chosen_by_port_and_pods_by_address(
    tmp_path: Path, shipped: Shipped, can: bool
) -> None:
    async with plane(tmp_path, shipped, *HOSTS, ports=3) as here:
        for address in here.pods.addresses:
            assert (await here.ask(address)).address == address
        for host in HOSTS:
            answers = await many(30, 10, lambda host=host: here.ask(host))
            assert {answer.address for answer in answers} == {
                f"{host}:{port}" for port in here.pods.ports
            }
        mixed = (here.pods.addresses[0], here.pods.addresses[4])
        answers = await many(100, 10, lambda: here.ask(*mixed))
        assert {answer.address for answer in answers} == set(mixed)


@each_configuration("test_the_picker_is_told_who_served")
async def test_the_picker_is_told_who_served(tmp_path: Path, shipped: Shipped, can: bool) -> None:
    async with plane(tmp_path, shipped, *HOSTS) as here:
        for address in here.pods.addresses:
            for method in ("POST", "GET"):
                answer = await here.ask(address, method=method)
                assert answer.address == address
                assert answer.said == (address if can else NOT_SERVED)


@each_configuration("test_without_a_picker_a_gateway_that_fails_open_serves")
async def test_without_a_picker_a_gateway_that_fails_open_serves(
    tmp_path: Path, shipped: Shipped, can: bool
) -> None:
    async with plane(tmp_path, shipped, *HOSTS, fail_open=True) as here:
        assert (await here.ask(HOSTS[0])).pod == HOSTS[0]
        here.picker.stopping.set()
        await here.gateway.picker_healthy(False)
        answers = await many(30, 10, here.ask)
        assert {answer.status for answer in answers} == {200 if can else 503}
        if can:
            assert {answer.pod for answer in answers} == set(HOSTS)


@each_configuration("test_two_pools_share_requests_by_weight_each_with_its_picker")
async def test_two_pools_share_requests_by_weight_each_with_its_picker(
    tmp_path: Path, shipped: Shipped, can: bool
) -> None:
    async with two_pools(tmp_path, shipped, weighted(70, 30)) as (url, client):
        answers = await many(200, 10, lambda: data_plane.ask(client, f"{url}/x"))
    assert {answer.status for answer in answers} == {200}
    share = sum(answer.pod in HOSTS[:2] for answer in answers) / 200
    assert abs(share - 0.7) <= max(0.10, 4.5 * math.sqrt(0.7 * 0.3 / 200))
    assert {answer.pod for answer in answers} == set(HOSTS)


@pytest.mark.parametrize("speaks", ["http/1.1", "h2c"])
@each_configuration("test_pods_speak_http1_or_h2c")
async def test_pods_speak_http1_or_h2c(
    tmp_path: Path, shipped: Shipped, can: bool, speaks: str
) -> None:
    if speaks == "http/1.1":
        async with plane(tmp_path, shipped, *HOSTS) as here:
            assert (await here.ask()).status == 200
        return
    async with AsyncExitStack() as stack:
        pod = await stack.enter_async_context(
            gateway(tmp_path / "pod", _NO_PICKER, edit=_only_http2)
        )
        pool = data_plane.Pods(("127.0.0.1",), (pod.port,))
        file = pool.file(tmp_path / "pool.json")
        picker = await stack.enter_async_context(data_plane.picker(file))
        front = await stack.enter_async_context(
            data_plane.envoy(
                tmp_path / "envoy", shipped, picker.ports.grpc, pool.addresses, edit=_h2c_pool
            )
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        for method in ("POST", "GET"):
            answer = await data_plane.ask(client, f"{front.url}/x", method=method)
            assert (answer.status, answer.text) == (200, "h2c")


@each_configuration("test_two_gateways_serve_their_own_pools")
async def test_two_gateways_serve_their_own_pools(
    tmp_path: Path, shipped: Shipped, can: bool
) -> None:
    async with (
        plane(tmp_path, shipped, *HOSTS[:2]) as first,
        plane(tmp_path, shipped, HOSTS[2]) as second,
    ):
        for here, hosts in ((first, HOSTS[:2]), (second, HOSTS[2:])):
            answers = await many(20, 5, lambda here=here: here.ask(method="GET"))
            assert {answer.pod for answer in answers} == set(hosts)


@each_configuration("test_rules_of_one_gateway_lead_to_their_own_pools")
async def test_rules_of_one_gateway_lead_to_their_own_pools(
    tmp_path: Path, shipped: Shipped, can: bool
) -> None:
    async with two_pools(tmp_path, shipped, by_path("/second")) as (url, client):
        for path, hosts in (("/first", HOSTS[:2]), ("/second", HOSTS[2:])):
            for method in ("GET", "POST"):
                answers = await many(
                    20,
                    5,
                    lambda path=path, method=method: data_plane.ask(
                        client, f"{url}{path}", method=method
                    ),
                )
                assert Counter(answer.status for answer in answers) == {200: 20}
                assert {answer.pod for answer in answers} == set(hosts)


@each_configuration("test_any_path_and_a_get_without_a_body_are_served")
async def test_any_path_and_a_get_without_a_body_are_served(
    tmp_path: Path, shipped: Shipped, can: bool
) -> None:
    async with plane(tmp_path, shipped, *HOSTS) as here:
        for path in ("/test-with-port", "/test-no-port", "/v1/completions", "/v1/models"):
            for method in ("GET", "POST"):
                answer = await here.ask(method=method, path=path)
                assert answer.status == 200
                got = json.loads(answer.text)
                assert got["path"] == path
                assert got["headers"][protocol.DESTINATION] == answer.address
                assert protocol.CONFORMANCE_SELECTION not in got["headers"]


# Two pools behind one gateway: clusters of their own, and a picker each


@asynccontextmanager
async def two_pools(
    tmp_path: Path, shipped: Shipped, routing: Edit
) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """Two pods behind one picker, one behind another; gives the gateway's URL and a client."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(data_plane.pods(*HOSTS[:2]))
        second = await stack.enter_async_context(data_plane.pods(HOSTS[2]))
        pickers = [
            await stack.enter_async_context(data_plane.picker(pool.file(tmp_path / name)))
            for pool, name in ((first, "first.json"), (second, "second.json"))
        ]

        def edit(config: dict[str, Any]) -> None:
            clusters = config["static_resources"]["clusters"]
            pool, picker = copy.deepcopy(clusters)
            pool["name"], picker["name"] = "pool-2", "picker-2"
            for cluster, addresses in (
                (pool, second.addresses),
                (picker, [f"127.0.0.1:{pickers[1].ports.grpc}"]),
            ):
                if "load_assignment" in cluster:
                    cluster["load_assignment"] = _assigned(cluster["name"], addresses)
            clusters += [pool, picker]
            routing(config)

        front = await stack.enter_async_context(
            data_plane.envoy(
                tmp_path / "envoy", shipped, pickers[0].ports.grpc, first.addresses, edit=edit
            )
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield front.url, client


def _assigned(name: str, addresses: list[str]) -> dict[str, Any]:
    pairs = [address.rpartition(":") for address in addresses]
    sockets = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
        for host, _, port in pairs
    ]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": sockets}]}


def _second_picker() -> dict[str, Any]:
    grpc = {"envoy_grpc": {"cluster_name": "picker-2", "authority": "picker"}}
    return {
        "ext_proc": {
            "@type": TYPE + "filters.http.ext_proc.v3.ExtProcPerRoute",
            "overrides": {"grpc_service": grpc},
        }
    }


def weighted(one: int, two: int) -> Edit:
    def edit(config: dict[str, Any]) -> None:
        for route in data_plane.manager(config)["route_config"]["virtual_hosts"][0]["routes"]:
            del route["route"]["cluster"]
            route["route"]["weighted_clusters"] = {
                "clusters": [
                    {"name": "pool", "weight": one},
                    {
                        "name": "pool-2",
                        "weight": two,
                        "typed_per_filter_config": _second_picker(),
                    },
                ]
            }

    return edit


def by_path(prefix: str) -> Edit:
    def edit(config: dict[str, Any]) -> None:
        routes = data_plane.manager(config)["route_config"]["virtual_hosts"][0]["routes"]
        second = copy.deepcopy(routes[-1])
        second["match"] = {"prefix": prefix}
        second["route"]["cluster"] = "pool-2"
        second["typed_per_filter_config"] = _second_picker()
        routes.insert(0, second)

    return edit


# A pod that speaks HTTP/2 and nothing else is an Envoy itself

_NO_PICKER = EnvoySettings(
    listen_port=0, admin_port=0, ext_proc_port=1, endpoints=["127.0.0.1:1"], shape="none"
)


def _only_http2(bootstrap: str) -> str:
    config = json.loads(bootstrap)
    manager = data_plane.manager(config)
    manager["codec_type"] = "HTTP2"
    answer = {"status": 200, "body": {"inline_string": "h2c"}}
    (host,) = manager["route_config"]["virtual_hosts"]
    host["routes"] = [{"match": {"prefix": "/"}, "direct_response": answer}]
    return json.dumps(config)


def _h2c_pool(config: dict[str, Any]) -> None:
    pool = config["static_resources"]["clusters"][0]
    (options,) = pool["typed_extension_protocol_options"].values()
    options["explicit_http_config"] = {"http2_protocol_options": {}}
