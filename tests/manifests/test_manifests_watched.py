"""An API server with the upstream definitions takes the pool; a picker finds its members by it."""

from random import Random
from typing import Any

import aiohttp
import pytest

from epp.control.kube.cluster import Scope
from epp.control.kube.objects import pods_by
from epp.framework import Role
from epp.manifests.overlay import GATEWAYS, Gateway
from epp.sim.apiserver.resources import PODS
from epp.sim.apiserver.server import ApiServer
from tests.fakes.cluster import pod, watched
from tests.fakes.crds import definitions, judge
from tests.fakes.waiting import until
from tests.manifests.rendered import (
    NAMESPACE,
    POOL,
    Object,
    container,
    flags,
    of_kind,
    pods,
    rendered,
)

ROLES = {
    "prefill": Role.PREFILL,
    "decode": Role.DECODE,
    "vllm": Role.UNLABELLED,
}


def _server() -> ApiServer:
    server = ApiServer(chance=Random(3), judge=judge)
    for each in definitions():
        server.define(each)
    return server


def _create(server: ApiServer, made: Object) -> Object:
    group, _, version = made["apiVersion"].rpartition("/")
    of = next(
        one
        for one in server.store.served
        if (one.group, one.version, one.kind) == (group, version, made["kind"])
    )
    return server.store.create(of, NAMESPACE, made)


def _scope(objects: tuple[Object, ...]) -> Scope:
    said = flags(container(objects, "epp", "epp"))
    selected: Any = None
    if "--endpoint-selector" in said:
        ports = said["--endpoint-target-ports"].split(",")
        selected = pods_by(said["--endpoint-selector"], ports)
    return Scope(pool=POOL, namespace=NAMESPACE, pods=selected)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("gateway", GATEWAYS)
async def test_a_picker_finds_its_members(gateway: Gateway, apart: bool) -> None:
    objects = rendered(gateway, apart=apart)
    async with _server() as server:
        for one in of_kind(objects, "InferencePool"):
            _create(server, one)
        ips = {name: f"10.0.0.{number}" for number, name in enumerate(pods(objects), start=1)}
        for name, template in pods(objects).items():
            labels = template["metadata"].get("labels", {})
            made = pod(name, ips[name], labels=labels, spec=template["spec"])
            server.store.create(PODS, NAMESPACE, made)
        async with watched(server, scope=_scope(objects)) as (cluster, seen):
            await until(lambda: cluster.ready and seen.members)
            found = {member.address: member for member in seen.members}
            engines = [name for name in ROLES if name in ips]
            assert found.keys() == {f"{ips[name]}:8000" for name in engines}
            for name in engines:
                member = found[f"{ips[name]}:8000"]
                assert member.role is ROLES[name]
                assert member.has_sidecar


async def test_a_pool_that_breaks_a_rule_is_refused_by_field() -> None:
    (pool,) = of_kind(rendered("istio"), "InferencePool")
    spec = {**pool["spec"], "targetPorts": [{"number": 8000}, {"number": 8000}]}
    async with _server() as server, aiohttp.ClientSession() as session:
        path = f"/apis/{pool['apiVersion']}/namespaces/{NAMESPACE}/inferencepools"
        async with session.post(f"{server.url}{path}", json={**pool, "spec": spec}) as answer:
            assert answer.status == 422
            status = await answer.json()
            assert [one["field"] for one in status["details"]["causes"]] == ["spec.targetPorts"]
        async with session.post(f"{server.url}{path}", json=pool) as answer:
            assert answer.status == 201
