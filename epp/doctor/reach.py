"""Whether gateways, pickers and engines may reach each other, as network policies have it. Pure."""

from collections.abc import Iterator
from functools import partial
from pathlib import PurePosixPath

from .findings import Finding, Level
from .network import let_in, may_reach, means
from .pools import Served, address, pickers, pools, service_port, target_port
from .shape import Object, at, labels
from .workloads import Deployed, Workload

_port = partial(Finding, check="ports", level=Level.ERROR)


def closed_ports(deployed: Deployed) -> Iterator[Finding]:
    """Where policies close pods, somebody has to let in whoever needs them."""
    for pool in pools(deployed):
        for engine in pool.engines:
            yield from _gateways(engine.workload, engine.served_at, "requests", deployed)
        yield from _within(pool, deployed)
        yield from _to_redis(pool, deployed)
    for picker in pickers(deployed):
        yield from _gateways(picker.workload, picker.grpc_port, "gateways", deployed)


def _gateways(pods: Workload, port: int, who: str, deployed: Deployed) -> Iterator[Finding]:
    """A gateway that is known has to come through; else somebody that may be one."""
    rules = let_in(pods, port, deployed)
    if rules is None:
        return
    known = [one for one in deployed.workloads if one.namespace == pods.namespace and _routes(one)]
    if known:
        open_to_it = any(may_reach(one, pods, port, deployed) for one in known)
    else:
        ours = _ours(deployed)
        open_to_it = any(
            not peers or any(_stranger(peer, pods, ours, deployed) for peer in peers)
            for peers in rules
        )
    if not open_to_it:
        yield _port(
            where=pods.where,
            what=f"its network policies let no gateway in at port {port}, where {who} come",
            fix="add an ingress rule for the gateway's pods"
            + (", and an egress rule where theirs are closed" if known else ""),
        )


def _routes(workload: Workload) -> bool:
    """It runs Envoy itself."""
    return any(
        PurePosixPath(one.words[0]).name == "envoy" if one.words else "/envoy:" in one.image
        for one in workload.containers
    )


def _ours(deployed: Deployed) -> list[Workload]:
    engines = [engine.workload for pool in pools(deployed) for engine in pool.engines]
    return [*engines, *(picker.workload for picker in pickers(deployed))]


def _stranger(peer: Object, pods: Workload, ours: list[Workload], deployed: Deployed) -> bool:
    """Whether a peer may be a gateway: pods by their labels are none if pickers or engines have
    them."""
    by_labels = at(peer, "podSelector") is not None
    return not by_labels or not any(means(peer, pods, one, deployed) for one in ours)


def _within(pool: Served, deployed: Deployed) -> Iterator[Finding]:
    """Pickers ask engines for tokens and pages; sidecars send each other prompts."""
    for engine in pool.engines:
        pods, port = engine.workload, engine.served_at
        callers = [] if pool.picker is None else [pool.picker.workload]
        if pool.apart and engine.role is not None and engine.role.serves_prefill:
            callers += [one.workload for one in pool.engines if one.sidecar is not None]
        for caller in callers:
            yield from _kept_away(caller, pods, port, deployed)


def _to_redis(pool: Served, deployed: Deployed) -> Iterator[Finding]:
    """Where the log is in a Redis of this namespace, all of the pool need it."""
    users = [
        (one.workload, one.sidecar.flags.get("--state-url", ""))
        for one in pool.engines
        if one.sidecar is not None
    ]
    if pool.picker is not None:
        users.append((pool.picker.workload, pool.picker.flags.get("--redis-url", "")))
    for user, url in users:
        host, said = address(url)
        service = deployed.named("Service", user.namespace, host.partition(".")[0])
        port = service_port(service, said)
        if service is None or port is None or url.startswith("tcp:"):
            continue
        for pods in deployed.selected(user.namespace, labels(service, "spec", "selector")):
            yield from _kept_away(user, pods, target_port(service, port, (pods,)), deployed)


def _kept_away(
    caller: Workload, pods: Workload, port: int, deployed: Deployed
) -> Iterator[Finding]:
    if not may_reach(caller, pods, port, deployed):
        yield _port(
            where=pods.where,
            what=f"network policies keep {caller.where} away from its port {port}",
            fix="let it in by an ingress rule here, and out by an egress rule there",
        )
