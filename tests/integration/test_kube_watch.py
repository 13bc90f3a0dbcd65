"""The reflector against a simulated API server that does what real ones do under faults."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from epp.control.kube.access import TokenFile
from epp.control.kube.cluster import Scope
from epp.control.kube.objects import pods_by
from epp.sim.apiserver.server import ApiServer
from tests.fakes.cluster import (
    NAMESPACE,
    OBJECTIVE,
    OLD_OBJECTIVE,
    POOL,
    REWRITE,
    Pods,
    api_server,
    definition,
    kind,
    pool,
    watched,
)
from tests.fakes.waiting import until


async def _ended(server: ApiServer, change: Callable[[], None]) -> None:
    server.end_watches()
    change()


async def _reset(server: ApiServer, change: Callable[[], None]) -> None:
    server.reset_watches()
    change()


async def _down(server: ApiServer, change: Callable[[], None]) -> None:
    await server.stop()
    change()
    await asyncio.sleep(0.5)
    await server.start()


async def _restarted(server: ApiServer, change: Callable[[], None]) -> None:
    """As seen of a real one: it does not know versions of before any more."""
    await server.stop()
    change()
    server.store.bump()
    server.store.compact()
    await server.start()


async def _compacted(server: ApiServer, change: Callable[[], None]) -> None:
    server.reset_watches()
    change()
    server.store.compact()


async def _silent(server: ApiServer, change: Callable[[], None]) -> None:
    """Half open: nothing comes any more, and nothing says so."""
    server.faults.freeze()
    change()
    before = server.watches
    await until(lambda: server.watches != before, within_s=10.0)
    server.faults.thaw()


async def _truncated(server: ApiServer, change: Callable[[], None]) -> None:
    server.faults.truncate = 2
    change()


async def _busy(server: ApiServer, change: Callable[[], None]) -> None:
    server.faults.codes["watch", "pods"] = 429
    server.reset_watches()
    change()
    await until(lambda: server.faults.asked["watch", "pods"] > 1)
    del server.faults.codes["watch", "pods"]


async def _broken(server: ApiServer, change: Callable[[], None]) -> None:
    server.faults.codes["*", "*"] = 500
    server.reset_watches()
    change()
    await asyncio.sleep(0.3)
    del server.faults.codes["*", "*"]


@pytest.mark.parametrize(
    "fault",
    [_ended, _reset, _down, _restarted, _compacted, _silent, _truncated, _busy, _broken],
    ids=lambda fault: fault.__name__.strip("_"),
)
async def test_changes_during_a_fault_are_seen_after_it(
    fault: Callable[[ApiServer, Callable[[], None]], Awaitable[None]],
) -> None:
    """One pod comes, one goes, and one loses its label, while nobody can tell us."""
    async with api_server() as server:
        pods = Pods(server)
        pods.put_pool(pool())
        for number in range(1, 4):
            pods.add(f"pod-{number}", f"10.0.0.{number}")
        async with watched(server) as (cluster, seen):
            await until(lambda: len(seen.addresses) == 3)

            def change() -> None:
                pods.add("pod-4", "10.0.0.4")
                pods.delete("pod-1", 0)
                pods.change("pod-2", {"metadata": {"labels": {"app": "other"}}})

            await fault(server, change)
            assert cluster.ready
            await until(lambda: seen.addresses == ["10.0.0.3:8000", "10.0.0.4:8000"], within_s=10.0)


async def test_members_stay_as_they_were_while_nobody_answers() -> None:
    async with api_server() as server:
        pods = Pods(server)
        pods.put_pool(pool())
        pods.add("a", "10.0.0.1")
        async with watched(server) as (cluster, seen):
            await until(lambda: seen.addresses)
            await server.stop()
            await until(lambda: "cannot" in cluster.why_not)
            assert seen.addresses == ["10.0.0.1:8000"]
            assert cluster.ready


@pytest.mark.parametrize("status", [200, 410])
async def test_a_version_that_is_always_too_old_is_got_over(status: int) -> None:
    """Lists work, and every watch says 410, in an event or as its status."""
    async with api_server() as server:
        pods = Pods(server)
        pods.put_pool(pool())
        if status == 410:
            server.faults.codes["watch", "pods"] = 410
        else:
            server.store.oldest += 1_000_000
        async with watched(server) as (_, seen):
            await until(lambda: seen.told)
            await until(lambda: server.faults.asked["watch", "pods"] >= 3)
            server.faults.codes.clear()
            server.store.oldest = server.store.version
            pods.add("a", "10.0.0.1")
            await until(lambda: seen.members)
            assert seen.addresses == ["10.0.0.1:8000"]


async def test_pages_make_one_list() -> None:
    async with api_server() as server:
        pods = Pods(server)
        pods.put_pool(pool())
        for number in range(1_203):
            pods.add(f"pod-{number}", f"10.0.{number // 250}.{number % 250 + 1}")
        async with watched(server) as (_, seen):
            await until(lambda: len(seen.members) == 1_203)
            assert server.faults.asked["list", "pods"] == 3
            assert seen.told == 1


async def test_pods_are_found_by_labels_where_there_is_no_pool() -> None:
    async with api_server() as server:
        pods = Pods(server)
        pods.add("a", "10.0.0.1", labels={"app": "llama", "tier": "x"})
        pods.add("b", "10.0.0.2", labels={"app": "llama", "tier": "y"})
        scope = Scope(
            pool=POOL, namespace=NAMESPACE, pods=pods_by("app=llama,tier=x", ["8000", "8001"])
        )
        async with watched(server, scope=scope) as (cluster, seen):
            await until(lambda: seen.addresses == ["10.0.0.1:8000", "10.0.0.1:8001"])
            assert cluster.ready
            assert not server.faults.asked["list", "inferencepools"]


async def test_objectives_and_rewrites_may_be_installed_later() -> None:
    async with api_server() as server:
        Pods(server).put_pool(pool())
        async with watched(server) as (cluster, seen):
            await until(lambda: cluster.ready)
            for of in (OLD_OBJECTIVE, OBJECTIVE, REWRITE):
                server.define(definition(*of))
            ref = {"poolRef": {"name": POOL}}
            other = {"poolRef": {"name": "other"}}
            target = {"targets": [{"modelRewrite": "llama-2"}]}
            for of, name, spec in (
                (OLD_OBJECTIVE, "ignored", {**ref, "priority": 9}),
                (OBJECTIVE, "batch", {**ref, "priority": -1}),
                (OBJECTIVE, "elsewhere", {**other, "priority": 5}),
                (OBJECTIVE, "odd", {**ref, "priority": "high"}),
                (REWRITE, "canary", {**ref, "rules": [target]}),
            ):
                made = {"metadata": {"name": name}, "spec": spec}
                server.store.create(kind(server, of), NAMESPACE, made)
            await until(lambda: seen.declared.rewrites and seen.declared.objectives)
            (objective,) = seen.declared.objectives
            assert (objective.metadata.name, objective.spec.priority) == ("batch", -1)
            assert seen.declared.rewrites[0].spec.rules[0].targets[0].modelRewrite == "llama-2"
            server.store.delete(kind(server, OBJECTIVE), NAMESPACE, "batch", None)
            await until(lambda: not seen.declared.objectives)
        standings = dict(cluster.standings())
        assert standings["inferenceobjectives"].counts["odd"] == 1


async def test_where_only_the_older_group_is_installed_it_counts() -> None:
    async with api_server() as server:
        server.define(definition(*OLD_OBJECTIVE))
        made = {"metadata": {"name": "urgent"}, "spec": {"priority": 7}}
        server.store.create(kind(server, OLD_OBJECTIVE), NAMESPACE, made)
        async with watched(server) as (_, seen):
            await until(lambda: seen.declared.objectives)
            assert [one.spec.priority for one in seen.declared.objectives] == [7]


async def test_a_token_that_is_renewed_is_read_again_when_it_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    async with api_server(tokens=["first"]) as server:
        pods = Pods(server)
        pods.put_pool(pool())
        async with watched(server, identity=TokenFile(file)) as (cluster, seen):
            await until(lambda: cluster.ready)
            server.tokens = {"second"}
            server.end_watches()
            pods.add("a", "10.0.0.1")
            await until(lambda: "token is refused" in cluster.why_not)
            file.write_text("second\n")
            await until(lambda: seen.members)
            assert seen.addresses == ["10.0.0.1:8000"]
