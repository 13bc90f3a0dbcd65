"""The overlay of one pool: a kustomization over the shipped parts, which stand beside it.

It says what differs from pool to pool: names, the model, how many pods of each kind, and where the
images come from. Whatever else a platform wants to change it adds to that file as a patch.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import yaml

from epp.errors import ConfigError

from .gateways import Gateway
from .parts import KUSTOMIZATION, Tree, needed

GATEWAYS: tuple[Gateway, ...] = get_args(Gateway)
PARTS = "gie-epp"
"""Folder of the shipped parts in what is written."""
IMAGES = ("gie-epp", "gie-epp-sidecar")
MAX_PODS = 1000
MAX_GPUS = 64

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_A_NAME = "1 to 63 of a-z, 0-9 and '-', the first and the last no '-'"
_SHAPES = {
    "pool": (_NAME, _A_NAME, True),
    "namespace": (_NAME, _A_NAME, True),
    "model": (re.compile(r"[A-Za-z0-9._/:@-]{1,256}"), "a name such as meta-llama/Llama-3", True),
    "registry": (re.compile(r"[A-Za-z0-9._:/-]{1,200}"), "one like registry.example.com/us", False),
    "tag": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"), "a tag such as v1.2.3", False),
}
"""What a word must look like, how that is told, and whether it must be there."""
_ARG = re.compile(r"--[a-z0-9][a-z0-9.-]*(=[^\x00-\x1f]*)?")
_OURS = {
    "--host",
    "--port",
    "--kv-events-config",
    "--kv-transfer-config",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--tensor-parallel-size",
}
"""What the sidecar counts on, or what another flag says."""

WITHOUT_KINDS: tuple[Gateway, ...] = ("standalone",)
"""Gateways for which no kinds have to be installed."""
_Place = tuple[str, str, str, str]
"""Kind and name (empty: any) of an object, where in it, and what stands there."""
_POOL: tuple[_Place, ...] = (
    ("InferencePool", "", "/metadata/name", "{pool}"),
    ("HTTPRoute", "", "/spec/rules/0/backendRefs/0/name", "{pool}"),
)
_FILTER = "/spec/configPatches/0/patch/value/typed_config/grpc_service/envoy_grpc/cluster_name"
_PLACES: Mapping[Gateway, tuple[_Place, ...]] = {
    "istio": _POOL,
    "istio-response-none": (
        ("EnvoyFilter", "picker", _FILTER, "outbound|9002||epp.{namespace}.svc.cluster.local"),
        (
            "EnvoyFilter",
            "picker",
            "/spec/configPatches/1/match/cluster/service",
            "engines.{namespace}.svc.cluster.local",
        ),
    ),
    "envoy-gateway": _POOL,
    "kgateway": _POOL,
    "gke": (
        *_POOL,
        ("GCPBackendPolicy", "", "/spec/targetRef/name", "{pool}"),
        ("HealthCheckPolicy", "", "/spec/targetRef/name", "{pool}"),
    ),
}
"""Where a gateway's objects hold names that kustomize does not know as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One pool. Raises ConfigError for what cannot be."""

    pool: str
    """Also the name of its InferencePool."""
    namespace: str
    """One for each pool: names in it are the same for all pools."""
    model: str
    """As vLLM takes it, the same text for all engines."""
    gateway: Gateway
    engines: int = 0
    """Pods that compute prompts and answers; not beside the other two."""
    prefill: int = 0
    decode: int = 0
    monitoring: bool = False
    """Monitors for the Prometheus operator."""
    gpus: int = 1
    """Of each engine, which then computes on all of them (`--tensor-parallel-size`)."""
    engine_args: tuple[str, ...] = ()
    """More for vLLM, each `--flag` or `--flag=value`."""
    registry: str = ""
    """Before the names of our images, such as `registry.example.com/team`."""
    tag: str = ""
    """Of our images; empty: what the parts say."""

    def __post_init__(self) -> None:
        for word, (pattern, like, wanted) in _SHAPES.items():
            value = getattr(self, word)
            if (value or wanted) and not pattern.fullmatch(value):
                raise ConfigError("", f"--{word}: expected {like}, got {value!r}")
        for arg in self.engine_args:
            if not _ARG.fullmatch(arg):
                like = "--name or --name=value"
                raise ConfigError("", f"--engine-arg: expected {like}, got {arg!r}")
            if arg.partition("=")[0] in _OURS:
                raise ConfigError("", f"--engine-arg: {arg!r} is set for you, as the parts need it")
        if not 1 <= self.gpus <= MAX_GPUS:
            raise ConfigError("", f"--gpus: an engine has 1 to {MAX_GPUS}")
        counts = (self.engines, self.prefill, self.decode)
        if not all(0 <= count <= MAX_PODS for count in counts):
            which = "--engines, --prefill and --decode"
            raise ConfigError("", f"{which}: of each kind of pods there are 0 to {MAX_PODS}")
        if bool(self.engines) == bool(self.prefill or self.decode):
            raise ConfigError("", "say --engines, or --prefill and --decode")
        if bool(self.prefill) != bool(self.decode):
            raise ConfigError("", "--prefill and --decode need each other")

    @property
    def replicas(self) -> dict[str, int]:
        """Pods by the name of their Deployment."""
        if self.engines:
            return {"vllm": self.engines}
        return {"prefill": self.prefill, "decode": self.decode}

    @property
    def components(self) -> tuple[str, ...]:
        engines = "vllm-aggregated" if self.engines else "vllm-prefill-decode"
        more = ("monitoring",) if self.monitoring else ()
        return tuple(f"components/{name}" for name in (engines, *more))


def written(wanted: Wanted, tree: Tree, said: str) -> dict[str, bytes]:
    """All files of the overlay by their paths. `tree` is what is shipped, `said` the command that
    asks for it."""
    overlay = f"overlays/{wanted.gateway}"
    kinds = () if wanted.gateway in WITHOUT_KINDS else ("crds",)
    parts = needed(tree, (overlay, *wanted.components, *kinds))
    files = {f"{PARTS}/{path}": data for path, data in parts.items()}
    files[KUSTOMIZATION] = _yaml(_kustomization(wanted, overlay), said)
    files["namespace.yaml"] = _yaml(_namespace(wanted.namespace), "")
    return files


def _kustomization(wanted: Wanted, overlay: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": wanted.namespace,
        "resources": ["namespace.yaml", f"{PARTS}/{overlay}"],
        "components": [f"{PARTS}/{each}" for each in wanted.components],
        "configMapGenerator": [
            {
                "name": "epp-pool",
                "behavior": "merge",
                "literals": [f"POOL_NAME={wanted.pool}", f"MODEL={wanted.model}"],
            }
        ],
        "replicas": [{"name": name, "count": count} for name, count in wanted.replicas.items()],
    }
    images = [_image(name, wanted) for name in IMAGES]
    if any(len(image) > 1 for image in images):
        made["images"] = images
    patches = [_renamed(place, wanted) for place in _PLACES.get(wanted.gateway, ())]
    steps = [*_steps(wanted)]
    if steps:
        patches += [_patch({"kind": "Deployment", "name": name}, steps) for name in wanted.replicas]
    if patches:
        made["patches"] = patches
    return made


def _image(name: str, wanted: Wanted) -> dict[str, str]:
    made = {"name": name}
    if wanted.registry:
        made["newName"] = f"{wanted.registry.rstrip('/')}/{name}"
    if wanted.tag:
        made["newTag"] = wanted.tag
    return made


def _renamed(place: _Place, wanted: Wanted) -> dict[str, Any]:
    kind, name, path, text = place
    value = text.format(pool=wanted.pool, namespace=wanted.namespace)
    target = {"kind": kind} | ({"name": name} if name else {})
    made = _patch(target, [{"op": "replace", "path": path, "value": value}])
    return made | ({"options": {"allowNameChange": True}} if path == "/metadata/name" else {})


def _patch(target: dict[str, str], steps: list[dict[str, str]]) -> dict[str, Any]:
    return {"target": target, "patch": yaml.safe_dump(steps, sort_keys=False, width=1000)}


def _steps(wanted: Wanted) -> Iterator[dict[str, str]]:
    """What is done to each Deployment of engines, as JSON patches have it."""
    engine = "/spec/template/spec/containers/0"
    args = wanted.engine_args
    if wanted.gpus > 1:
        limit = f"{engine}/resources/limits/nvidia.com~1gpu"
        yield {"op": "replace", "path": limit, "value": str(wanted.gpus)}
        args = (f"--tensor-parallel-size={wanted.gpus}", *args)
    yield from ({"op": "add", "path": f"{engine}/args/-", "value": arg} for arg in args)


def _namespace(name: str) -> dict[str, Any]:
    """No pod of ours needs more than the strictest of Kubernetes' levels."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }


def _yaml(value: object, said: str) -> bytes:
    head = f"# Written by: {said}\n" if said else ""
    return (head + yaml.safe_dump(value, sort_keys=False, width=100)).encode()
