"""What matters of the objects that we watch. Pure.

Only these fields are read, whatever else an object carries, so that one of ten thousand pods costs
microseconds. A field of another type than the API has makes the object odd: `ValueError`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from epp.state.event_ports import NOTHING_SAID, EventPorts

T = TypeVar("T")

ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotation of a pod: which of the pool's ports it serves, comma separated. The first counts."""
KV_EVENTS_PORT = "gie-epp/kv-events-port"
KV_REPLAY_PORT = "gie-epp/kv-replay-port"
KV_EVENTS_TOPIC = "gie-epp/kv-events-topic"
"""Annotations of a pod without our sidecar: where its engine tells what its cache holds."""
SIDECAR = "epp-sidecar"
"""Name of the container that tells that our sidecar stands before the engine."""
MAX_PORTS = 8
"""Of a pool, as its schema has it."""

_EQUALITY = re.compile(r"[A-Za-z0-9._/-]+=[A-Za-z0-9._-]*")
_OVER = frozenset({"Failed", "Succeeded"})


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """One object as the reflection keeps it."""

    key: str
    """Its uid: another life of a name is another object."""
    version: str
    value: T


class Meta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None

    @property
    def key(self) -> str:
        return self.uid or f"{self.namespace}/{self.name}"


class _Port(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    container_port: int = 0


class _Container(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    ports: list[_Port] | None = None


class _PodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    host_network: bool | None = None


class _Condition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""


class _PodStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: list[_Condition] | None = None


class _Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: Meta = Meta()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod, as far as it decides about endpoints: two equal ones make equal endpoints."""

    uid: str
    name: str
    created: str
    """As the server writes it; later is greater."""
    labels: dict[str, str]
    ip: str
    """Empty while it has none."""
    takes_requests: bool
    """Ready, not terminating (it may say Ready all the while), and not over."""
    active_ports: frozenset[int] | None
    """Only these of the pool's ports; None: all of them."""
    has_sidecar: bool
    events: EventPorts
    """Of its first port; nothing where a sidecar follows them."""


def read_pod(raw: bytes | msgspec.Raw) -> Held[Pod]:
    """Raises ValueError."""
    wire = msgspec.json.decode(raw, type=_Pod)
    meta, status = wire.metadata, wire.status
    ready = any(one.type == "Ready" and one.status == "True" for one in status.conditions or ())
    takes = ready and meta.deletion_timestamp is None and status.phase not in _OVER
    every = [*(wire.spec.containers or ()), *(wire.spec.init_containers or ())]
    has_sidecar = any(one.name == SIDECAR for one in every)
    annotations = meta.annotations or {}
    pod = Pod(
        uid=meta.key,
        name=meta.name,
        created=meta.creation_timestamp or "",
        labels=meta.labels or {},
        ip=status.pod_ip,
        takes_requests=takes,
        active_ports=_active(annotations, wire.spec, every),
        has_sidecar=has_sidecar,
        events=NOTHING_SAID if has_sidecar else _events(annotations),
    )
    return Held(meta.key, meta.resource_version, pod)


def _events(annotations: dict[str, str]) -> EventPorts:
    """What is no port counts as not said."""
    topic = annotations.get(KV_EVENTS_TOPIC)
    ports = [_port(annotations.get(name)) for name in (KV_EVENTS_PORT, KV_REPLAY_PORT)]
    if topic is None and ports == [None, None]:
        return NOTHING_SAID
    return EventPorts(events=ports[0], replay=ports[1], topic=topic)


def _port(said: str | None) -> int | None:
    text = (said or "").strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 65_536
    return number if number <= 65_535 else None


def _active(
    annotations: dict[str, str], spec: _PodSpec, every: list[_Container]
) -> frozenset[int] | None:
    """What the pod says, else, where pods share the node's address, what its containers declare."""
    for name in ACTIVE_PORTS:
        said = annotations.get(name)
        if said is None:
            continue
        parts = [part.strip() for part in said.split(",") if part.strip()]
        if all(part.isascii() and part.isdigit() for part in parts):
            return frozenset(map(int, parts))
    if spec.host_network:
        declared = frozenset(port.container_port for one in every for port in one.ports or ())
        return declared or None
    return None


class _Number(msgspec.Struct, frozen=True, gc=False):
    number: int


class _PoolSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    selector: dict[str, Any] | None = None
    target_ports: list[_Number] | None = None
    target_port_number: int | None = None


class _Pool(msgspec.Struct, frozen=True, gc=False):
    metadata: Meta = Meta()
    spec: _PoolSpec = _PoolSpec()


@dataclass(frozen=True, slots=True)
class Pool:
    """Which pods belong to a pool, and where they listen."""

    uid: str
    selector: str
    """Equalities, as a query has them; in order, so that equal ones are equal."""
    ports: tuple[int, ...]


def read_pool(raw: bytes | msgspec.Raw) -> Held[Pool]:
    """An InferencePool, v1 (`matchLabels`, `targetPorts`) or v1alpha2 (flat, one port).

    Raises ValueError; also for a selector that is empty, which would match every pod.
    """
    wire = msgspec.json.decode(raw, type=_Pool)
    selector: dict[str, Any] = wire.spec.selector or {}
    labels = selector.get("matchLabels", selector)
    if not isinstance(labels, dict) or not labels:
        raise ValueError("the selector has no labels")
    if not all(isinstance(value, str) for value in labels.values()):
        raise ValueError("the selector has labels without a value")
    numbers = [one.number for one in wire.spec.target_ports or ()]
    if not numbers and wire.spec.target_port_number is not None:
        numbers = [wire.spec.target_port_number]
    ports = checked_ports(numbers)
    text = ",".join(f"{key}={labels[key]}" for key in sorted(labels))
    return Held(
        wire.metadata.key, wire.metadata.resource_version, Pool(wire.metadata.key, text, ports)
    )


def pods_by(labels: str, ports: Sequence[str]) -> Pool:
    """A pool that no object declares. Raises ValueError for what is no list of labels, or ports."""
    parts = sorted(part.strip() for part in labels.split(","))
    if not all(_EQUALITY.fullmatch(part) for part in parts):
        raise ValueError("expected labels such as app=llama,tier=gpu")
    if not all(port.isascii() and port.isdigit() for port in ports):
        raise ValueError("expected ports such as 8000,8001")
    return Pool("", ",".join(parts), checked_ports([int(port) for port in ports]))


def checked_ports(numbers: list[int]) -> tuple[int, ...]:
    """Raises ValueError for none, too many, one twice, or one that is none."""
    if not 1 <= len(numbers) <= MAX_PORTS or len(set(numbers)) != len(numbers):
        raise ValueError(f"expected 1 to {MAX_PORTS} ports, each once")
    if not all(1 <= number <= 65535 for number in numbers):
        raise ValueError("a port is between 1 and 65535")
    return tuple(numbers)
