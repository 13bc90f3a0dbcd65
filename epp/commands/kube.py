"""`epp bench kube`: what following the pods of a large pool costs, and how soon a change counts.

A simulated API server in a process of its own holds the pods and changes them at a steady rate: a
pod stops being ready, and is ready again a second later. This process watches them as a picker
does, and takes each list over into a pool, whose table is then made anew as for a decision.
"""

import asyncio
import json
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from random import Random

from epp.control.kube.access import Access, Anonymous
from epp.control.kube.api import Api
from epp.control.kube.cluster import Cluster, Scope, Told
from epp.control.kube.objects import pods_by
from epp.framework import PoolId
from epp.sim.apiserver.patches import MERGE
from epp.sim.apiserver.resources import PODS, Object
from epp.sim.apiserver.server import ApiServer
from epp.sim.benches.measure import quantile
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix import PredictedIndex, PrefixIndex

NAMESPACE = "bench"
SELECTOR = "app=engine"
CHANGED = "bench/changed-at"
"""Label: when a pod was made ready, on the clock that all processes share."""
PAD = "x" * 5500
"""Makes a pod as long as real ones are: 6.3 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """CPU of the watching process."""

    pods: int
    changes_per_s: float
    list_cpu_s: float
    """From nothing until all pods are in the pool."""
    list_wall_s: float
    core: float
    """CPU seconds per second while pods change."""
    seen: int
    """Changes that made a pod ready and were seen."""
    routable_p50_s: float
    """From the change at the server until a decision may choose the pod."""
    routable_p99_s: float
    takes: int
    """Lists of members that were taken over."""


async def bench(*, pods: int, changes_per_s: float, seconds: float) -> Found:
    """Watch for so long."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=_serve, args=(theirs, pods, changes_per_s), daemon=True)
    server.start()
    try:
        port = await asyncio.to_thread(ours.recv)
        return await _watch(f"http://127.0.0.1:{port}", ours, pods, changes_per_s, seconds)
    finally:
        server.terminate()
        await asyncio.to_thread(server.join)


def shown(found: Found, *, as_json: bool) -> str:
    """As text or JSON."""
    if as_json:
        return json.dumps(asdict(found))
    return "\n".join(
        (
            f"{found.pods} pods, {found.changes_per_s:g} changes a second",
            f"first list              {found.list_cpu_s:.2f} s CPU, {found.list_wall_s:.2f} s wall",
            f"while pods change       {found.core:.3f} core, {found.takes} lists taken over",
            f"change until routable   median {1000 * found.routable_p50_s:.0f} ms, "
            f"99th percentile {1000 * found.routable_p99_s:.0f} ms, of {found.seen}",
        )
    )


class _Follower:
    """Takes lists over as a picker does, and looks how old what is new in them is."""

    def __init__(self) -> None:
        self.pool = PoolState(
            PoolId("bench"),
            Endpoints(),
            PrefixIndex(1_000),
            PredictedIndex(1_000, 60.0),
            LoadBook(),
        )
        self.waits_s: list[float] = []
        self.takes = 0
        self.known: set[int] = set()

    def take(self, members: Sequence[Member]) -> None:
        self.pool.replace(members, time.monotonic())
        self.pool.ready(time.monotonic())
        now, self.takes = time.monotonic(), self.takes + 1
        for member in members:
            if id(member) not in self.known and CHANGED in member.labels:
                self.waits_s.append(now - float(member.labels[CHANGED]))
        self.known = {id(member) for member in members}


async def _watch(
    url: str, server: Connection, pods: int, changes_per_s: float, seconds: float
) -> Found:
    follower = _Follower()
    api = Api(Access(url=url, identity=Anonymous(), source="bench"))
    cluster = Cluster(
        api,
        Scope(pool="bench", namespace=NAMESPACE, pods=pods_by(SELECTOR, ["8000"])),
        Told(members=follower.take, declared=None),
        clock=time.monotonic,
        cpu=time.thread_time,
        chance=Random(1),
    )
    cpu, wall = time.process_time(), time.monotonic()
    with suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(cluster.run())
            while len(follower.pool.endpoints) < pods:
                await cluster.until_moved()
            list_cpu, list_wall = time.process_time() - cpu, time.monotonic() - wall
            server.send("change")
            follower.takes = 0
            cpu, wall = time.process_time(), time.monotonic()
            await asyncio.sleep(seconds)
            spent, lasted = time.process_time() - cpu, time.monotonic() - wall
            running.cancel()
    await api.close()
    return Found(
        pods=pods,
        changes_per_s=changes_per_s,
        list_cpu_s=list_cpu,
        list_wall_s=list_wall,
        core=spent / lasted,
        seen=len(follower.waits_s),
        routable_p50_s=quantile(follower.waits_s, 0.5),
        routable_p99_s=quantile(follower.waits_s, 0.99),
        takes=follower.takes,
    )


def _serve(pipe: Connection, pods: int, changes_per_s: float) -> None:
    """The server's process."""
    asyncio.run(_serving(pipe, pods, changes_per_s))


async def _serving(pipe: Connection, pods: int, changes_per_s: float) -> None:
    async with ApiServer(chance=Random(2)) as server:
        for number in range(pods):
            server.store.create(PODS, NAMESPACE, _pod(number))
        pipe.send(server.port)
        await asyncio.to_thread(pipe.recv)
        began, made = time.monotonic(), 0
        while True:  # one pod stops, and the one that stopped a second before is ready again
            _flip(server, made % pods, ready=False)
            _flip(server, (made - round(changes_per_s / 2)) % pods, ready=True)
            made += 1
            await asyncio.sleep(max(0.0, began + 2 * made / changes_per_s - time.monotonic()))


def _flip(server: ApiServer, number: int, *, ready: bool) -> None:
    """Two changes at the server, of which the first one is only a new label."""
    name, status = f"pod-{number}", "True" if ready else "False"
    conditions = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
    if ready:
        stamp = {"metadata": {"labels": {CHANGED: f"{time.monotonic():.6f}"}}}
        server.store.patch(PODS, NAMESPACE, name, stamp, kind=MERGE, part="")
    server.store.patch(PODS, NAMESPACE, name, conditions, kind=MERGE, part="status")


def _pod(number: int) -> Object:
    return {
        "metadata": {
            "name": f"pod-{number}",
            "labels": {"app": "engine", "llm-d.ai/role": "decode"},
            "annotations": {"pad": PAD},
        },
        "spec": {"nodeName": "node", "containers": [{"name": "engine", "image": "engine:1"}]},
        "status": {
            "phase": "Running",
            "podIP": f"10.{number // 62500}.{number // 250 % 250}.{number % 250 + 1}",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
