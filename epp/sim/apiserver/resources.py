"""What kinds of objects the server knows: the built-in ones that we need, and those of CRDs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind at one version, as discovery tells it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    """`/status` is an endpoint of its own: each of both ignores the other's half."""
    short_names: tuple[str, ...] = ()
    custom: bool = False
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """openAPIV3Schema; empty: anything goes."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def family(self) -> tuple[str, str]:
        """Versions of one family show the same objects."""
        return (self.group, self.plural)


def _core(plural: str, kind: str, short: str, **more: Any) -> Resource:
    return Resource(
        group="", version="v1", plural=plural, kind=kind, short_names=(short,), status=True, **more
    )


NAMESPACES = _core("namespaces", "Namespace", "ns", namespaced=False)
PODS = _core("pods", "Pod", "po")
SERVICES = _core("services", "Service", "svc")
CONFIG_MAPS = Resource(
    group="", version="v1", plural="configmaps", kind="ConfigMap", short_names=("cm",)
)
SECRETS = Resource(group="", version="v1", plural="secrets", kind="Secret")
NODES = _core("nodes", "Node", "no", namespaced=False)
LEASES = Resource(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease")
SLICES = Resource(
    group="discovery.k8s.io", version="v1", plural="endpointslices", kind="EndpointSlice"
)
CRDS = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
    status=True,
    short_names=("crd", "crds"),
)

BUILT_IN = (NAMESPACES, PODS, SERVICES, CONFIG_MAPS, SECRETS, NODES, LEASES, SLICES, CRDS)


def of_definition(definition: Object) -> list[Resource]:
    """The served versions of a CustomResourceDefinition."""
    spec = definition["spec"]
    names = spec["names"]
    return [
        Resource(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            namespaced=spec.get("scope", "Namespaced") == "Namespaced",
            status="status" in version.get("subresources", {}),
            short_names=tuple(names.get("shortNames", ())),
            custom=True,
            schema=version.get("schema", {}).get("openAPIV3Schema", {}),
        )
        for version in spec["versions"]
        if version.get("served", True)
    ]
