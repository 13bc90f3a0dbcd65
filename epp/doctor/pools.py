"""Which pools there are: who picks for each, by which labels, and the engines behind it. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

import msgspec
import yaml

from epp.config.endpoints_file import ROLE_LABEL
from epp.control.kube.objects import SIDECAR, Pool, pods_by, read_pool
from epp.framework import Role
from epp.framework.engines import DEFAULT, LABEL, LEGACY_LABEL

from .shape import Object, at, labels, rows, table, text
from .workloads import Container, Deployed, Workload, mounted, namespace_of, where

IMAGE = "gie-epp"
GRPC_PORT = 9002
SIDECAR_PORT = 8000
POOLS_FILE = "--pools-file"
_NOTHING = Pool("", "", ())


@dataclass(frozen=True, kw_only=True)
class Picker:
    """Pods that run `epp serve`, for one pool."""

    workload: Workload
    container: Container
    own: Mapping[str, str] | None = None
    """What a pools file says of this pool; None: the command line is all that is known."""

    @property
    def where(self) -> str:
        return self.workload.of(self.container)

    @cached_property
    def flags(self) -> dict[str, str]:
        """A pool's own go before the command line's."""
        if self.own is None:
            return self.container.flags
        said = self.container.flags
        return {flag: value for flag, value in said.items() if flag != POOLS_FILE} | {**self.own}

    @property
    def pool_name(self) -> str:
        return self.flags.get("--pool-name", "default")

    @property
    def namespace(self) -> str:
        """Of its pool."""
        return self.flags.get("--pool-namespace") or self.workload.namespace

    @property
    def grpc_port(self) -> int:
        return number(self.container.flags.get("--grpc-port", ""), GRPC_PORT)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Pods of a pool that compute."""

    workload: Workload
    container: Container
    sidecar: Container | None

    @property
    def where(self) -> str:
        return self.workload.of(self.container)

    @property
    def kind(self) -> str:
        said = (self.workload.labels.get(name, "") for name in (LABEL, LEGACY_LABEL))
        return next(filter(None, said), DEFAULT)

    @property
    def role_label(self) -> str:
        return self.workload.labels.get(ROLE_LABEL, "")

    @property
    def role(self) -> Role | None:
        """None: no role has this name."""
        try:
            return Role(self.role_label)
        except ValueError:
            return None

    @property
    def port(self) -> int:
        """Where the engine itself listens."""
        return number(self.container.flags.get("--port", ""), 8000)

    @property
    def served_at(self) -> int:
        """Where requests come in."""
        if self.sidecar is None:
            return self.port
        return number(self.sidecar.flags.get("--port", ""), SIDECAR_PORT)


@dataclass(frozen=True, kw_only=True)
class Served:
    """One pool."""

    where: str
    """What declares it: its object, or the picker whose flags do."""
    name: str
    namespace: str
    selector: Mapping[str, str]
    ports: tuple[int, ...]
    picker: Picker | None
    """None: nobody among these objects."""
    engines: tuple[Engine, ...]
    declared: Object | None
    """The InferencePool; None: flags."""
    fault: str = ""
    """Why its declaration cannot be used; then it has no selector."""

    @property
    def apart(self) -> bool:
        """Prompts may be computed by others than the destination."""
        return any(one.role is not None and one.role.serves_prefill for one in self.engines)


def pickers(deployed: Deployed) -> Iterator[Picker]:
    """Of several pools in one process each by itself."""
    for workload in deployed.workloads:
        for container in workload.containers:
            if _serves(container):
                owns = _of_file(workload, container, deployed)
                for own in owns or (None,):
                    yield Picker(workload=workload, container=container, own=own)


def _of_file(workload: Workload, container: Container, deployed: Deployed) -> list[dict[str, str]]:
    """The flags of each pool that its pools file names, as far as it can be read."""
    path = container.flags.get(POOLS_FILE, "")
    try:
        said = yaml.safe_load(mounted(workload, container, path, deployed) or "")
    except (yaml.YAMLError, ValueError):
        return []
    return [
        {"--pool-name": text(one, "name")}
        | {f"--{flag}": _word(value) for flag, value in table(one, "flags").items()}
        for one in rows(said, "pools")
    ]


def _word(value: object) -> str:
    """As it would stand on a command line."""
    if isinstance(value, list):
        return ",".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def pools(deployed: Deployed) -> list[Served]:
    """By their objects, and by the flags of pickers that need none."""
    every = list(pickers(deployed))
    declared = [_declared(one, every, deployed) for one in deployed.kinds("InferencePool")]
    return [*declared, *(_selected(one, deployed) for one in every if _selector(one))]


def _serves(container: Container) -> bool:
    ours = _image(container.image) == IMAGE
    words = container.words
    called = any(word == "epp" or word.endswith("/epp") for word in words)
    return "serve" in words and (called or ours)


def _image(image: str) -> str:
    """The last part of an image's name, without tag or digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def _selector(picker: Picker) -> str:
    return picker.flags.get("--endpoint-selector", "")


def _selected(picker: Picker, deployed: Deployed) -> Served:
    ports = picker.flags.get("--endpoint-target-ports", "").split(",")
    fault, pool = "", _NOTHING
    try:
        pool = pods_by(_selector(picker), ports)
    except ValueError as error:
        fault = f"--endpoint-selector or --endpoint-target-ports: {error}"
    return Served(
        where=picker.where,
        name=picker.pool_name,
        namespace=picker.namespace,
        selector=_pairs(pool.selector),
        ports=pool.ports,
        picker=picker,
        engines=_engines(picker.namespace, pool, deployed),
        declared=None,
        fault=fault,
    )


def _declared(one: Object, every: list[Picker], deployed: Deployed) -> Served:
    fault, pool = "", _NOTHING
    try:
        pool = read_pool(msgspec.json.encode(one)).value
    except (ValueError, TypeError) as error:
        fault = str(error)
    namespace = namespace_of(one)
    name = text(one, "metadata", "name")
    behind = _behind(one, namespace, deployed)
    asked = [each for each in every if each.workload in behind]
    asked = [each for each in asked if each.own is None or each.pool_name == name]
    return Served(
        where=where(one),
        name=name,
        namespace=namespace,
        selector=_pairs(pool.selector),
        ports=pool.ports,
        picker=asked[0] if asked else None,
        engines=_engines(namespace, pool, deployed),
        declared=one,
        fault=fault,
    )


def reference(pool: Object) -> dict[str, object]:
    """What an InferencePool says of its picker, v1 or v1alpha2."""
    return table(pool, "spec", "endpointPickerRef") or table(pool, "spec", "extensionRef")


def _behind(pool: Object, namespace: str, deployed: Deployed) -> tuple[Workload, ...]:
    service = deployed.named("Service", namespace, text(reference(pool), "name"))
    return deployed.selected(namespace, labels(service, "spec", "selector"))


def _pairs(selector: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in selector.split(",") if part)
    return {key: value for key, _, value in pairs}


def _engines(namespace: str, pool: Pool, deployed: Deployed) -> tuple[Engine, ...]:
    return tuple(map(_engine, deployed.selected(namespace, _pairs(pool.selector))))


def _engine(workload: Workload) -> Engine:
    sidecar = workload.container(SIDECAR)
    others = [one for one in workload.containers if one is not sidecar]
    known = [one for one in others if _computes(one)]
    nothing = Container(name="", image="", raw={}, environment={})
    return Engine(workload=workload, container=[*known, *others, nothing][0], sidecar=sidecar)


def _computes(container: Container) -> bool:
    names = (container.image, container.name, *container.words[:3])
    return any(word in name for name in names for word in ("vllm", "sglang", "trtllm", "triton"))


def number(said: str, default: int) -> int:
    return int(said) if said.isascii() and said.isdigit() else default


def address(url: str) -> tuple[str, int]:
    """Host and port of a URL; empty and 0 for what is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "", 0
    return host or "", port or 0


def container_ports(container: Container) -> dict[str, int]:
    """By name."""
    ports = rows(container.raw, "ports")
    return {text(one, "name"): number(text(one, "containerPort"), 0) for one in ports}


def target_port(service: Object, port: Mapping[str, object], pods: tuple[Workload, ...]) -> int:
    """Where a port of a Service leads in the pods behind it; 0 for a name that none of them has."""
    said = text(port, "targetPort") or text(port, "port")
    if said.isdigit():
        return int(said)
    found = (container_ports(one).get(said, 0) for pod in pods for one in pod.containers)
    return next(filter(None, found), 0)


def service_port(service: Object | None, wanted: object) -> dict[str, object] | None:
    """The port of this number."""
    ports = rows(service, "spec", "ports")
    return next((one for one in ports if at(one, "port") == wanted), None)
