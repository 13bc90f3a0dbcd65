"""The objects of one namespace of a live cluster, asked for kind by kind.

What is not installed is not there. What we may not read is a note, and nothing is said to be
missing of it. Secrets are read by name only, those that hold a certificate.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from epp.control.kube.api import Api, Refused, Resource, Unanswered
from epp.errors import EppError

from .certificates import secrets
from .findings import Finding, Level
from .workloads import Deployed

PAGE = 500
MAX_OBJECTS = 20_000
"""Of one kind; more are not read."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One kind; `versions`: the newest first."""

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.versions[0]}".removeprefix("/")


KINDS = (
    Asked("", ("v1",), "pods", "Pod"),
    Asked("", ("v1",), "services", "Service"),
    Asked("", ("v1",), "configmaps", "ConfigMap"),
    Asked("", ("v1",), "serviceaccounts", "ServiceAccount"),
    Asked("apps", ("v1",), "deployments", "Deployment"),
    Asked("apps", ("v1",), "statefulsets", "StatefulSet"),
    Asked("apps", ("v1",), "daemonsets", "DaemonSet"),
    Asked("leaderworkerset.x-k8s.io", ("v1",), "leaderworkersets", "LeaderWorkerSet"),
    Asked("networking.k8s.io", ("v1",), "networkpolicies", "NetworkPolicy"),
    Asked("rbac.authorization.k8s.io", ("v1",), "roles", "Role"),
    Asked("rbac.authorization.k8s.io", ("v1",), "rolebindings", "RoleBinding"),
    Asked("rbac.authorization.k8s.io", ("v1",), "clusterroles", "ClusterRole", False),
    Asked("rbac.authorization.k8s.io", ("v1",), "clusterrolebindings", "ClusterRoleBinding", False),
    Asked("autoscaling", ("v2",), "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    Asked("keda.sh", ("v1alpha1",), "scaledobjects", "ScaledObject"),
    Asked("inference.networking.k8s.io", ("v1",), "inferencepools", "InferencePool"),
    Asked("inference.networking.x-k8s.io", ("v1alpha2",), "inferencepools", "InferencePool"),
    Asked("gateway.networking.k8s.io", ("v1",), "gateways", "Gateway"),
    Asked("gateway.networking.k8s.io", ("v1",), "httproutes", "HTTPRoute"),
    Asked(
        "gateway.networking.k8s.io", ("v1", "v1alpha3"), "backendtlspolicies", "BackendTLSPolicy"
    ),
    Asked("networking.istio.io", ("v1alpha3",), "envoyfilters", "EnvoyFilter"),
    Asked("networking.istio.io", ("v1", "v1beta1"), "destinationrules", "DestinationRule"),
    Asked("gateway.envoyproxy.io", ("v1alpha1",), "clienttrafficpolicies", "ClientTrafficPolicy"),
    Asked("agentgateway.dev", ("v1alpha1",), "agentgatewaypolicies", "AgentgatewayPolicy"),
)
_SECRET = Asked("", ("v1",), "secrets", "Secret")


class NoAnswer(EppError):
    """The API server cannot be asked at all."""

    reason = "unanswered"


@dataclass(slots=True)
class Seen:
    """What was read, and what was not."""

    objects: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    notes: list[Finding] = field(default_factory=list[Finding])
    unread: set[str] = field(default_factory=set[str])

    @property
    def deployed(self) -> Deployed:
        return Deployed.of(self.objects, live=True, unread=frozenset(self.unread))


async def seen(api: Api, namespace: str) -> Seen:
    """Raises NoAnswer when the server does not answer, or does not know us."""
    found = Seen()
    for one in KINDS:
        await _read(api, one, namespace, "", found)
    for place, name in sorted(secrets(found.deployed)):
        if place == namespace:
            await _read(api, _SECRET, namespace, name, found)
    return found


async def _read(api: Api, kind: Asked, namespace: str, name: str, found: Seen) -> None:
    for version in kind.versions:
        resource = Resource(
            group=kind.group,
            version=version,
            plural=kind.plural,
            namespace=namespace if kind.namespaced else "",
            name=name,
        )
        try:
            found.objects += [each async for each in _items(api, resource, kind)]
        except Refused as refused:
            if refused.code == 401:
                raise NoAnswer(str(refused)) from refused
            if refused.code == 404:
                continue
            _unread(kind, str(refused), found)
        except Unanswered as error:
            raise NoAnswer(str(error)) from error
        return


_note = partial(Finding, check="cluster", level=Level.NOTE)


def _unread(kind: Asked, why: str, found: Seen) -> None:
    found.unread.add(kind.kind)
    found.notes.append(
        _note(
            where=f"{kind.plural}.{kind.group or 'core'}",
            what=f"not looked at: {why}",
            fix=f"run it as somebody who may list {kind.plural}",
        )
    )


async def _items(api: Api, resource: Resource, kind: Asked) -> AsyncIterator[dict[str, Any]]:
    """Page after page; objects of a list do not say what they are."""
    query, read = {"limit": str(PAGE)}, 0
    while True:
        page = msgspec.json.decode(await api.listed(resource, query))
        for item in page.get("items") or ():
            if read < MAX_OBJECTS:
                read += 1
                yield item | {"kind": kind.kind, "apiVersion": kind.api_version}
        after = page.get("metadata", {}).get("continue")
        if not after or read >= MAX_OBJECTS:
            return
        query["continue"] = after
