"""A cluster for tests: a simulated API server with the kinds that a picker watches, and pods."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import yaml

from epp.config.objectives_file import Declared
from epp.control.kube.access import Access, Anonymous, Identity
from epp.control.kube.api import Api
from epp.control.kube.cluster import Cluster, Scope, Told
from epp.control.kube.reflector import Times
from epp.sim.apiserver.resources import PODS, Object, Resource
from epp.sim.apiserver.server import ApiServer
from epp.state.endpoints import Member

NAMESPACE = "team-a"
POOL = "llama"
LABELS = {"app": "llama"}
V1 = ("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool")
OLD = ("inference.networking.x-k8s.io", "v1alpha2", "inferencepools", "InferencePool")
OBJECTIVE = ("llm-d.ai", "v1alpha2", "inferenceobjectives", "InferenceObjective")
REWRITE = ("llm-d.ai", "v1alpha2", "inferencemodelrewrites", "InferenceModelRewrite")
OLD_OBJECTIVE = ("inference.networking.x-k8s.io", *OBJECTIVE[1:])

QUICK = Times(
    watch_s=(3, 3),
    silent_s=1.0,
    first_pause_s=0.05,
    longest_pause_s=0.5,
    absent_s=0.2,
    believed_s=0.5,
)
"""Everything that takes seconds in production, sooner."""


def definition(
    group: str,
    version: str,
    plural: str,
    kind: str,
    *,
    scope: str = "Namespaced",
    **schema: Any,
) -> Object:
    """A CustomResourceDefinition that lets everything pass, unless `schema` says more."""
    every: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, **schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "kind": kind, "singular": kind.lower()},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": every},
                }
            ],
        },
    }


def pod(name: str, ip: str, **changes: Any) -> Object:
    """A pod that is ready. `changes`: labels, annotations, ready, phase, spec, status."""
    ready = "True" if changes.pop("ready", True) else "False"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": changes.pop("labels", LABELS),
            "annotations": changes.pop("annotations", {}),
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "engine", "image": "engine:1"}],
            **changes.pop("spec", {}),
        },
        "status": {
            "phase": changes.pop("phase", "Running"),
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": ready}],
            **changes.pop("status", {}),
        },
    }


def pool(ports: tuple[int, ...] = (8000,), labels: Mapping[str, str] = LABELS) -> Object:
    """An InferencePool v1."""
    spec = {
        "selector": {"matchLabels": dict(labels)},
        "targetPorts": [{"number": port} for port in ports],
        "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
    }
    return {"metadata": {"name": POOL}, "spec": spec}


def kind(server: ApiServer, of: tuple[str, str, str, str]) -> Resource:
    found = server.store.resource(*of[:3])
    assert found is not None
    return found


class Pods:
    """Pods of one server, by short calls."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._store = server.store

    def add(self, name: str, ip: str, **changes: Any) -> str:
        """Its uid."""
        made = self._store.create(PODS, NAMESPACE, pod(name, ip, **changes))
        return str(made["metadata"]["uid"])

    def change(self, name: str, patch: Object, part: str = "") -> None:
        merge = "application/merge-patch+json"
        self._store.patch(PODS, NAMESPACE, name, patch, kind=merge, part=part)

    def status(self, name: str, **status: Any) -> None:
        self.change(name, {"status": status}, "status")

    def delete(self, name: str, grace_s: int | None = None) -> None:
        self._store.delete(PODS, NAMESPACE, name, grace_s)

    def put_pool(self, made: Object, of: tuple[str, str, str, str] = V1) -> None:
        """Create it, or make it this."""
        resource = kind(self._server, of)
        have = {one["metadata"]["name"] for one in self._store.listed(resource, NAMESPACE)}
        if made["metadata"]["name"] in have:
            self._store.replace(resource, NAMESPACE, made["metadata"]["name"], made, "")
        else:
            self._store.create(resource, NAMESPACE, made)

    def delete_pool(self, of: tuple[str, str, str, str] = V1) -> None:
        self._store.delete(kind(self._server, of), NAMESPACE, POOL, None)


class Seen:
    """What a cluster tells."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.declared = Declared()
        self.told = 0

    def take(self, members: Any) -> None:
        self.members = list(members)
        self.told += 1

    def declare(self, declared: Declared) -> None:
        self.declared = declared

    @property
    def addresses(self) -> list[str]:
        return sorted(member.address for member in self.members)


@asynccontextmanager
async def api_server(**settings: Any) -> AsyncIterator[ApiServer]:
    """A server that knows InferencePool v1, and nothing optional."""
    async with ApiServer(chance=Random(7), **settings) as server:
        server.define(definition(*V1))
        yield server


@asynccontextmanager
async def watched(
    server: ApiServer,
    *,
    scope: Scope | None = None,
    times: Times = QUICK,
    identity: Identity | None = None,
) -> AsyncIterator[tuple[Cluster, Seen]]:
    """A cluster that watches `server`, and what it tells."""

    seen = Seen()
    access = Access(url=server.url, identity=identity or Anonymous(), source="test")
    api = Api(access, connect_s=1.0)
    loop = asyncio.get_running_loop()
    cluster = Cluster(
        api,
        scope or Scope(pool=POOL, namespace=NAMESPACE),
        Told(members=seen.take, declared=seen.declare),
        clock=loop.time,
        cpu=time.thread_time,
        chance=Random(3),
        times=times,
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(cluster.run())
        try:
            yield cluster, seen
        finally:
            running.cancel()
            await asyncio.wait([running])
            await api.close()


def kubeconfig(directory: Path, url: str, **user: Any) -> Path:
    """A file that leads there."""
    text = yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": user}],
        }
    )
    path = directory / "kubeconfig"
    path.write_text(text)
    return path
