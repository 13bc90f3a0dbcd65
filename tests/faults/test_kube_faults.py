"""Field faults of Kubernetes: what changes, goes away, is refused, or comes late."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from epp import readiness
from epp.control.kube.api import Refused, Resource
from epp.control.kube.cluster import Scope
from epp.control.kube.objects import read_pod
from epp.control.kube.reflection import Reflection
from epp.control.kube.reflector import Reflector
from epp.framework import Role
from epp.sim.apiserver.server import ApiServer
from tests.fakes.backend import backend
from tests.fakes.cluster import (
    LABELS,
    NAMESPACE,
    OBJECTIVE,
    OLD,
    POOL,
    Pods,
    Seen,
    api_server,
    definition,
    kubeconfig,
    pool,
    watched,
)
from tests.fakes.extproc_client import call, channel, destination
from tests.fakes.picker_process import PickerProcess, cluster_process
from tests.fakes.waiting import until
from tests.timing import scaled

CHANGE_S = 2.0


@asynccontextmanager
async def _served(ports: tuple[int, ...] = (8000,)) -> AsyncIterator[tuple[ApiServer, Pods, Seen]]:
    """A pool of two pods, and what a picker knows of it."""
    async with api_server() as server:
        pods = Pods(server)
        pods.put_pool(pool(ports))
        pods.add("a", "10.0.0.1")
        pods.add("b", "10.0.0.2")
        async with watched(server) as (_, seen):
            await until(lambda: len(seen.members) == 2 * len(ports))
            yield server, pods, seen


async def test_F01_ports_that_the_pool_drops_are_no_endpoints_any_more() -> None:
    """Protected by `listen_at` in `Cluster._see_pool`; red without it."""
    async with _served((8000, 8001, 8002)) as (_, pods, seen):
        pods.put_pool(pool((8000,)))
        await until(lambda: len(seen.members) == 2, within_s=CHANGE_S)
        assert seen.addresses == ["10.0.0.1:8000", "10.0.0.2:8000"]
        pods.put_pool(pool((8000, 9000)))
        await until(lambda: len(seen.members) == 4, within_s=CHANGE_S)


async def test_F01_a_pod_serves_the_ports_that_it_says() -> None:
    """Protected by the active ports in `Membership._members`; red when every port counts."""
    async with _served((8000, 8001)) as (_, pods, seen):
        some = {"metadata": {"annotations": {"llm-d.ai/active-ports": "8001"}}}
        pods.change("a", some)
        await until(lambda: len(seen.members) == 3, within_s=CHANGE_S)
        assert "10.0.0.1:8000" not in seen.addresses


async def test_F02_labels_that_change_count_at_once() -> None:
    """Protected by the comparison in `Reflection._taken`; red when a known pod is not looked at."""
    async with _served() as (_, pods, seen):
        pods.change("a", {"metadata": {"labels": {"llm-d.ai/role": "prefill"}}})
        pods.change("b", {"metadata": {"labels": {"app": None}}})
        await until(lambda: seen.addresses == ["10.0.0.1:8000"], within_s=CHANGE_S)
        await until(lambda: seen.members[0].role is Role.PREFILL, within_s=CHANGE_S)
        pods.change("a", {"metadata": {"labels": {"llm-d.ai/role": "decode"}}})
        await until(lambda: seen.members[0].role is Role.DECODE, within_s=CHANGE_S)
        assert seen.addresses == ["10.0.0.1:8000"], "without the pool's label it is no member"


async def test_F02_another_selector_is_another_pool_of_pods() -> None:
    """Protected by the new watch in `Cluster._follow_pods`; red when the first one goes on. No
    moment of it is without pods."""
    async with _served() as (_, pods, seen):
        pods.add("c", "10.0.0.3", labels={"app": "other"})
        least = [len(seen.members)]
        take = seen.take

        def watched_take(members: Any) -> None:
            take(members)
            least.append(len(seen.members))

        seen.take = watched_take  # type: ignore[method-assign]
        pods.put_pool(pool((8000,), {"app": "other"}))
        await until(lambda: seen.addresses == ["10.0.0.3:8000"], within_s=CHANGE_S)
        assert min(least) >= 1


def _reflectors() -> int:
    """Tasks that watch something now."""
    return sum("Reflector.run" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_F03_a_pool_may_go_and_come_again_with_another_selector() -> None:
    """Protected by `_known` in `Cluster._apply`; red when a pool that is gone stays ready."""
    async with api_server() as server:
        pods = Pods(server)
        pods.add("a", "10.0.0.1")
        pods.add("c", "10.0.0.3", labels={"app": "other"})
        async with watched(server) as (cluster, seen):
            await until(lambda: "no InferencePool" in cluster.why_not)
            assert not cluster.ready
            reflectors = _reflectors()
            for labels, address in ((LABELS, "10.0.0.1:8000"), ({"app": "other"}, "10.0.0.3:8000")):
                pods.put_pool(pool((8000,), labels))
                await until(lambda address=address: seen.addresses == [address])
                assert cluster.ready
                pods.delete_pool()
                await until(lambda: not cluster.ready)
                await until(lambda: not seen.members)
            await until(lambda: _reflectors() == reflectors)


@asynccontextmanager
async def _picker(directory: Path, server: ApiServer, *more: str) -> AsyncIterator[PickerProcess]:
    """A whole picker that asks this server, and leaves us its log."""
    flags = ("--kubeconfig", str(kubeconfig(directory, server.url)), "--pool-name", POOL)
    async with cluster_process(directory, *flags, "--pool-namespace", NAMESPACE) as picker:
        yield picker


async def _destination(picker: PickerProcess) -> str | None:
    async with channel(picker.ports["grpc"]) as to:
        return await destination(call(to))


async def test_F03_without_a_pool_requests_get_503_and_nothing_is_ready(tmp_path: Path) -> None:
    """Protected by `follow` in `epp.readiness`; red when readiness stays."""
    async with api_server() as server, backend("b") as engine:
        pods = Pods(server)
        host, _, port = engine.address.rpartition(":")
        pods.add("a", host)
        async with _picker(tmp_path, server) as picker:
            await until(lambda: "no InferencePool" in picker.log.read_text(), within_s=10)
            assert not await picker.serving()
            assert await _destination(picker) is None
            pods.put_pool(pool((int(port),)))
            await picker.until_serving(True)
            assert await _destination(picker) == engine.address
            pods.delete_pool()
            await picker.until_serving(False)
            assert await _destination(picker) is None


async def test_F04_a_pod_that_terminates_gets_nothing_new_though_it_is_ready() -> None:
    """Protected by the deletion timestamp in `read_pod`; red when Ready alone counts."""
    async with _served() as (_, pods, seen):
        pods.delete("a")
        await until(lambda: seen.addresses != ["10.0.0.1:8000", "10.0.0.2:8000"], within_s=1.0)
        assert seen.addresses == ["10.0.0.2:8000"]


async def test_F05_pods_that_cannot_serve_are_no_endpoints() -> None:
    """Protected by `_host` in `membership` and by `takes_requests` in `objects`; red without."""
    async with _served() as (_, pods, seen):
        pods.add("no-address", "")
        pods.add("odd-address", "unknown")
        pods.add("failed", "10.0.0.5", phase="Failed")
        pods.add("over", "10.0.0.6", phase="Succeeded")
        pods.add("unready", "10.0.0.7", ready=False)
        pods.add("new", "10.0.0.8", status={"conditions": []})
        pods.add("last", "10.0.0.9")
        await until(lambda: "10.0.0.9:8000" in seen.addresses)
        assert seen.addresses == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.9:8000"]


async def test_F05_of_two_pods_with_one_address_the_younger_one_has_it() -> None:
    """Protected by `Membership.members`; red when the first one stays."""
    times = iter(f"2026-01-31T12:00:{second:02}Z" for second in range(60))
    async with api_server(wall=lambda: next(times)) as server:
        pods = Pods(server)
        pods.put_pool(pool())
        pods.add("old", "10.0.0.1")
        young = pods.add("young", "10.0.0.1")
        async with watched(server) as (_, seen):
            await until(lambda: seen.members and seen.members[0].id.name == young)
            assert [member.address for member in seen.members] == ["10.0.0.1:8000"]


async def test_F05_pods_on_the_host_s_network_serve_the_ports_they_declare() -> None:
    """Protected by `_active` in `objects`; red when each of them has both ports."""
    async with api_server() as server:
        pods = Pods(server)
        pods.put_pool(pool((8000, 8001)))
        for number, port in enumerate((8000, 8001)):
            engine = {"name": "engine", "ports": [{"containerPort": port}]}
            pods.add(f"h{number}", "10.9.9.9", spec={"hostNetwork": True, "containers": [engine]})
        async with watched(server) as (_, seen):
            await until(lambda: seen.addresses == ["10.9.9.9:8000", "10.9.9.9:8001"])
            assert len({member.id.name for member in seen.members}) == 2


@pytest.mark.parametrize(
    ("code", "plural", "says"),
    [
        (403, "pods", r"not allowed to list pods \(core\) in namespace team-a: grant"),
        (403, "inferencepools", r"not allowed to list inferencepools \(inference.networking.k8s"),
        (401, "pods", "not known to the API server, to list pods"),
        (500, "pods", "cannot list pods .*: 500"),
    ],
)
async def test_F06_what_is_refused_is_named_and_goes_on_when_it_is_allowed(
    code: int, plural: str, says: str
) -> None:
    """Protected by the sentences of `_refused` in `api`; red without the verb and the kind."""
    async with api_server() as server:
        pods = Pods(server)
        pods.put_pool(pool())
        server.faults.codes["list", plural] = code
        async with watched(server) as (cluster, seen):
            await until(lambda: re.search(says, cluster.why_not))
            assert not cluster.ready
            server.faults.codes.clear()
            pods.add("a", "10.0.0.1")
            await until(lambda: seen.addresses)


class _Refusing:
    """An API that answers every list, or every watch, alike, and counts."""

    def __init__(self, code: int, *, lists: bool) -> None:
        self._refused = Refused(code, "no", retry_after_s=0.0, typed=True)
        self._lists = lists
        self.asked = 0

    async def listed(self, *_: object) -> bytes:
        self.asked += 1
        if not self._lists:
            raise self._refused
        return b'{"metadata": {"resourceVersion": "7"}, "items": []}'

    @asynccontextmanager
    async def watched(self, *_: object, silent_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked += 1
        if self._refused.code != 200:
            raise self._refused
        yield _nothing()


async def _nothing() -> AsyncIterator[bytes]:
    for line in ():
        yield line


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("code", "lists"), [(403, False), (500, False), (403, True), (410, True), (200, True)]
)
async def test_F06_what_does_not_work_is_asked_for_ever_more_rarely(code: int, lists: bool) -> None:
    """Refused lists, refused watches, versions forgotten for ever, watches that end at once: 40
    requests in 30 s at most. Protected by `_next_pause`; red when pauses do not grow."""
    api = _Refusing(code, lists=lists)
    loop = asyncio.get_running_loop()
    resource = Resource(group="", version="v1", plural="pods", namespace=NAMESPACE)
    reflector = Reflector(
        api, resource, Reflection(read_pod), lambda _: None, clock=loop.time, chance=Random(1)
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30.0):
            await reflector.run()
    assert 5 <= api.asked <= 40


async def test_F06_kinds_that_are_optional_are_neither_waited_for_nor_asked_for_often() -> None:
    """Protected by `optional` in `Reflector._refused`; red when every kind is needed."""
    async with api_server() as server:
        pods = Pods(server)
        server.define(definition(*OBJECTIVE))
        server.faults.codes["list", "inferenceobjectives"] = 403
        pods.put_pool(pool())
        pods.add("a", "10.0.0.1")
        async with watched(server) as (cluster, seen):
            await until(lambda: seen.addresses)
            assert cluster.ready
            await until(lambda: all(one.synced for _, one in cluster.standings()))


async def test_F07_every_replica_serves_and_none_waits_for_another() -> None:
    """Nobody leads: protected by `_known` in `Cluster._apply`, which each replica finds out by
    itself; red without it."""
    async with _served() as (server, _, first), watched(server) as (second, seen):
        await until(lambda: second.ready)
        assert seen.addresses == first.addresses


async def test_F08_nothing_is_ready_before_the_pods_are_known(tmp_path: Path) -> None:
    """Protected in `Cluster._see_pool`: a pool whose pods were not listed is not told of."""
    async with api_server() as server, backend("b") as engine:
        host, _, port = engine.address.rpartition(":")
        pods = Pods(server)
        pods.put_pool(pool((int(port),)))
        pods.add("a", host)
        server.faults.delays_s["list", "pods"] = 1.5
        async with _picker(tmp_path, server) as picker:
            unready = 0
            async with asyncio.timeout(scaled(20)):
                while not await picker.serving():
                    unready += 1
                    await asyncio.sleep(0.05)
            assert unready > 3
            assert await _destination(picker) == engine.address


async def test_F08_a_worker_waits_for_the_pool_before_its_host_counts_on_it() -> None:
    """Protected by `soon` in `epp.readiness`; red when it does not wait."""
    cluster = SimpleNamespace(ready=False)
    picker: Any = SimpleNamespace(members=SimpleNamespace(cluster=cluster))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await readiness.soon(picker, asyncio.Event())
    cluster.ready = True
    async with asyncio.timeout(scaled(2)):
        await readiness.soon(picker, asyncio.Event())


async def test_F12_an_older_pool_is_served_alike() -> None:
    """Protected by the flat selector and the single port in `read_pool`; red without."""
    async with api_server() as server:
        server.define(definition(*OLD))
        pods = Pods(server)
        spec = {"selector": LABELS, "targetPortNumber": 8000, "extensionRef": {"name": "epp"}}
        pods.put_pool({"metadata": {"name": POOL}, "spec": spec}, OLD)
        pods.add("a", "10.0.0.1")
        scope = Scope(pool=POOL, namespace=NAMESPACE, group=OLD[0])
        async with watched(server, scope=scope) as (_, seen):
            await until(lambda: seen.members)
            assert seen.addresses == ["10.0.0.1:8000"]


def _line(kind: str, version: int, *, ip: str = "10.0.0.1", uid: str = "u") -> bytes:
    meta = {"name": "a", "uid": uid, "resourceVersion": str(version), "unknownField": {"x": 1}}
    ready = {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}, {"type": "New"}]}
    return json.dumps({"type": kind, "object": {"metadata": meta, "status": ready}}).encode()


def test_F14_what_was_deleted_stays_deleted_whatever_is_said_of_before() -> None:
    """Protected by `_later` in `reflection`; red when every version counts."""
    reflection = Reflection(read_pod)
    reflection.page(b'{"metadata": {"resourceVersion": "10"}, "items": []}')
    for said in (_line("ADDED", 11), _line("DELETED", 13), _line("MODIFIED", 12)):
        reflection.line(said)
    assert not reflection.values
    reflection.line(_line("ADDED", 14, uid="another"))
    assert list(reflection.values) == ["another"]


def test_F14_bookmarks_odd_kinds_and_one_version_twice_change_nothing() -> None:
    """Protected by the kinds in `Reflection.line`; red when a bookmark is taken for a pod."""
    reflection = Reflection(read_pod)
    reflection.page(b'{"metadata": {"resourceVersion": "10"}, "items": []}')
    reflection.line(_line("ADDED", 11))
    bookmark = b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}}'
    for said in (_line("ADDED", 11, ip="10.0.0.9"), bookmark, _line("PURGED", 21)):
        assert reflection.line(said) == {}
    assert [one.ip for one in reflection.values.values()] == ["10.0.0.1"]
    assert reflection.version == "20"


async def test_F15_an_ipv6_address_stands_in_brackets() -> None:
    """Protected by `_host` in `membership`; red without brackets."""
    async with _served() as (_, pods, seen):
        pods.add("six", "fd00::0001")
        await until(lambda: "[fd00::1]:8000" in seen.addresses)
        (six,) = [member for member in seen.members if member.address == "[fd00::1]:8000"]
        assert six.metrics_url == "http://[fd00::1]:8000/metrics"
