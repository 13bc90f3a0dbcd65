"""Labels and ports: whether a pool has members, and whether requests reach them. Pure."""

from collections.abc import Iterator
from functools import partial

from epp.control.kube.objects import ACTIVE_PORTS

from .findings import Finding, Level
from .pools import (
    POOLS_FILE,
    Engine,
    Picker,
    Served,
    address,
    number,
    pickers,
    pools,
    reference,
    service_port,
    target_port,
)
from .reach import closed_ports
from .shape import at, labels, text
from .workloads import Deployed

_label = partial(Finding, check="labels")
_port = partial(Finding, check="ports")
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def check_labels(deployed: Deployed) -> Iterator[Finding]:
    """Each picker has a pool, each pool a picker and pods."""
    known = pools(deployed)
    if not known and not any(pickers(deployed)):
        yield _label(
            level=Level.NOTE,
            where="all objects",
            what="there is neither an InferencePool nor a picker of ours among them",
            fix="give a folder or a namespace that has them",
        )
    for pool in known:
        yield from _pool(pool, deployed)
    for picker in pickers(deployed):
        yield from _has_pool(picker, known)
        if POOLS_FILE in picker.flags:
            yield _label(
                level=Level.NOTE,
                where=picker.where,
                what="its pools are not looked at: no ConfigMap here holds the pools of "
                f"{picker.flags[POOLS_FILE] or 'its file'}",
                fix="give the ConfigMap too, or mend its text",
            )


def _pool(pool: Served, deployed: Deployed) -> Iterator[Finding]:
    if pool.fault:
        yield _label(
            level=Level.ERROR,
            where=pool.where,
            what=f"cannot be used: {pool.fault}",
            fix="select pods by labels and their values, and name 1 to 8 ports",
        )
    elif not pool.engines:
        selector = ",".join(f"{key}={value}" for key, value in pool.selector.items())
        yield _label(
            level=Level.ERROR,
            where=pool.where,
            what=f"no pod template in namespace {pool.namespace} has the labels {selector}",
            fix="give the engines' pod templates these labels, or let the pool select theirs",
        )
    if pool.picker is not None and pool.engines:
        yield from _one_name(pool, pool.picker)
    if pool.declared is not None:
        yield from _asked(pool, deployed)


def _one_name(pool: Served, picker: Picker) -> Iterator[Finding]:
    """A log is found by the pool's name: both sides must say the same."""
    for engine in pool.engines:
        if engine.sidecar is None:
            continue
        said = engine.sidecar.flags.get("--pool-name", "")
        if said != picker.pool_name:
            yield _label(
                level=Level.ERROR,
                where=engine.workload.of(engine.sidecar),
                what=f"its sidecar says --pool-name={said}, the picker {picker.pool_name}: "
                "no picker reads what it writes",
                fix=f"start the sidecar with --pool-name={picker.pool_name}",
            )


def _asked(pool: Served, deployed: Deployed) -> Iterator[Finding]:
    """The picker that an InferencePool names."""
    said = reference(pool.declared or {})
    name = text(said, "name")
    service = deployed.named("Service", pool.namespace, name)
    if service is None:
        yield _label(
            level=Level.ERROR,
            where=pool.where,
            what=f"its picker is the Service {name!r}, which is not in namespace {pool.namespace}",
            fix="name the picker's Service in endpointPickerRef",
        )
        return
    by = labels(service, "spec", "selector")
    if pool.picker is None and any(
        one.workload.selected(pool.namespace, by) for one in pickers(deployed)
    ):
        yield _label(
            level=Level.ERROR,
            where=pool.where,
            what=f"the picker behind the Service {name!r} serves other pools only",
            fix=f"an entry of its pools file with name: {pool.name}",
        )
    elif pool.picker is None:
        yield _label(
            level=Level.NOTE,
            where=pool.where,
            what=f"no `epp serve` was found behind the Service {name!r}: another picker is asked",
            fix="check the Service's selector if it should be ours",
        )
    if text(said, "failureMode") == "FailOpen" and any(
        one.role is not None and not one.role.serves_decode for one in pool.engines
    ):
        yield _label(
            level=Level.WARNING,
            where=pool.where,
            what="without a picker any pod gets requests, also those that only prefill",
            fix="failureMode: FailClose",
        )


def _has_pool(picker: Picker, known: list[Served]) -> Iterator[Finding]:
    flags = picker.flags
    if {"--endpoint-selector", "--endpoints-file", POOLS_FILE} & flags.keys():
        return
    if "file-discovery" in flags.get("--config-text", "") or "--config-file" in flags:
        return
    here = {(one.namespace, one.name) for one in known if one.declared is not None}
    if (picker.namespace, picker.pool_name) not in here:
        yield _label(
            level=Level.ERROR,
            where=picker.where,
            what=f"there is no InferencePool {picker.pool_name} in namespace {picker.namespace}: "
            "it will never be ready",
            fix="name the pool in --pool-name, or select pods with --endpoint-selector",
        )


def check_ports(deployed: Deployed) -> Iterator[Finding]:
    """Gateway to picker, gateway to engine, sidecar to engine."""
    for pool in pools(deployed):
        for engine in pool.engines:
            yield from _served_at(pool, engine)
            if engine.sidecar is not None:
                yield from _before(engine)
        if pool.declared is not None:
            yield from _reached(pool, deployed)
    yield from closed_ports(deployed)


def _served_at(pool: Served, engine: Engine) -> Iterator[Finding]:
    annotations = engine.workload.annotations
    said = next((annotations[name] for name in ACTIVE_PORTS if name in annotations), None)
    ranks = number(engine.sidecar.flags.get("--dp-size", ""), 1) if engine.sidecar else 1
    serves = {engine.served_at + rank for rank in range(ranks)}
    asked = set(pool.ports)
    if said is not None:
        asked &= {int(part) for part in said.split(",") if part.strip().isdigit()}
    missing = sorted(asked - serves)
    known = engine.sidecar is not None or "--port" in engine.container.flags
    if missing and known:
        who = "its sidecar" if engine.sidecar is not None else "its engine"
        yield _port(
            level=Level.ERROR,
            where=engine.workload.where,
            what=f"the pool sends requests to port {', '.join(map(str, missing))}, {who} listens "
            f"at {', '.join(map(str, sorted(serves)))}",
            fix="let the pool's target ports and --port (with --dp-size) be the same",
        )


def _before(engine: Engine) -> Iterator[Finding]:
    """The sidecar's way to its engine."""
    sidecar = engine.sidecar
    assert sidecar is not None
    _, port = address(sidecar.flags.get("--engine-url", "http://127.0.0.1:8200"))
    if "--port" in engine.container.flags and port != engine.port:
        yield _port(
            level=Level.ERROR,
            where=engine.workload.of(sidecar),
            what=f"it looks for its engine at port {port}, which listens at {engine.port}",
            fix=f"--engine-url=http://127.0.0.1:{engine.port}",
        )
    if engine.container.name and engine.container.flags.get("--host", "") not in LOOPBACK:
        yield _port(
            level=Level.ERROR if _hands_over(engine) else Level.WARNING,
            where=engine.where,
            what="the engine listens for more than its sidecar: requests that come to it directly "
            "are checked by nobody, and with a KV connector one of them can end it",
            fix="start the engine with --host=127.0.0.1",
        )


def _hands_over(engine: Engine) -> bool:
    return bool(engine.container.config("--kv-transfer-config"))


def _reached(pool: Served, deployed: Deployed) -> Iterator[Finding]:
    said = reference(pool.declared or {})
    service = deployed.named("Service", pool.namespace, text(said, "name"))
    if service is None or pool.picker is None:
        return
    number = at(said, "port", "number") or at(said, "portNumber") or 9002
    port = service_port(service, number)
    if port is None:
        yield _port(
            level=Level.ERROR,
            where=pool.where,
            what=f"the picker's Service has no port {number}",
            fix=f"add it to the Service, with targetPort {pool.picker.grpc_port}",
        )
        return
    pods = deployed.selected(pool.namespace, labels(service, "spec", "selector"))
    leads = target_port(service, port, pods)
    if leads != pool.picker.grpc_port:
        yield _port(
            level=Level.ERROR,
            where=f"Service {pool.namespace}/{text(service, 'metadata', 'name')}",
            what=f"port {number} leads to {leads or 'no port of the pods'}, the picker listens at "
            f"{pool.picker.grpc_port}",
            fix=f"targetPort: {pool.picker.grpc_port}",
        )
    if not text(port, "appProtocol"):
        yield _port(
            level=Level.WARNING,
            where=f"Service {pool.namespace}/{text(service, 'metadata', 'name')}",
            what=f"port {number} has no appProtocol: some gateways would speak HTTP/1.1 to it",
            fix="appProtocol: http2, or kubernetes.io/h2c with --secure-serving=false",
        )
