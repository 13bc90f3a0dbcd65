"""Who network policies let come to which port. Pure.

Labels of a namespace are known where its object is; else only its name is, and whatever a selector
asks for beyond that it may have. An address block may be anybody's.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from .shape import Object, at, labels, rows, table, text, texts
from .workloads import Deployed, Workload, namespace_of

Peers = Sequence[Object]
"""Of a rule: whom it lets pass; nobody named: everybody."""
_Way = Literal["ingress", "egress"]
_NAME = "kubernetes.io/metadata.name"


def let_in(pods: Workload, port: int, deployed: Deployed) -> list[Peers] | None:
    """Of each rule that opens this port. None: no policy closes these pods."""
    return _open(pods, "ingress", pods, port, deployed)


def may_reach(source: Workload, pods: Workload, port: int, deployed: Deployed) -> bool:
    """Whether the policies of both ends let a connection through."""
    arriving = _open(pods, "ingress", pods, port, deployed)
    leaving = _open(source, "egress", pods, port, deployed)
    return _pass(arriving, pods, source, deployed) and _pass(leaving, source, pods, deployed)


def means(peer: Object, pods: Workload, other: Workload, deployed: Deployed) -> bool:
    """Whether a peer in a rule about `pods` may be this other end."""
    if at(peer, "ipBlock") is not None:
        return True
    if at(peer, "namespaceSelector") is None:
        if other.namespace != pods.namespace:
            return False
    elif not _of_namespace(table(peer, "namespaceSelector"), other.namespace, deployed):
        return False
    return _selects(table(peer, "podSelector"), other.labels)


def _pass(rules: list[Peers] | None, pods: Workload, other: Workload, deployed: Deployed) -> bool:
    return rules is None or any(
        not peers or any(means(peer, pods, other, deployed) for peer in peers) for peers in rules
    )


def _open(
    closed: Workload, way: _Way, listening: Workload, port: int, deployed: Deployed
) -> list[Peers] | None:
    policies = [
        one
        for one in deployed.kinds("NetworkPolicy")
        if namespace_of(one) == closed.namespace
        and _selects(table(one, "spec", "podSelector"), closed.labels)
        and way.capitalize() in _types(one)
    ]
    if not policies:
        return None
    rules = [rule for one in policies for rule in rows(one, "spec", way)]
    named = "from" if way == "ingress" else "to"
    return [rows(rule, named) for rule in rules if _opens(rule, listening, port)]


def _types(policy: Object) -> list[str]:
    also = ["Egress"] if rows(policy, "spec", "egress") else []
    return texts(policy, "spec", "policyTypes") or ["Ingress", *also]


def _opens(rule: Object, listening: Workload, port: int) -> bool:
    ports = rows(rule, "ports")
    names = {
        text(one, "name")
        for each in listening.containers
        for one in rows(each.raw, "ports")
        if at(one, "containerPort") == port
    }
    for one in ports:
        first, last = at(one, "port"), at(one, "endPort")
        if first is None or first == port or text(one, "port") in names:
            return True
        if isinstance(first, int) and isinstance(last, int) and first <= port <= last:
            return True
    return not ports


def _of_namespace(selector: Object, name: str, deployed: Deployed) -> bool:
    for one in deployed.kinds("Namespace"):
        if text(one, "metadata", "name") == name:
            return _selects(selector, labels(one, "metadata", "labels") | {_NAME: name})
    return labels(selector, "matchLabels").get(_NAME, name) == name


def _selects(selector: Object, own: Mapping[str, str]) -> bool:
    return labels(selector, "matchLabels").items() <= own.items() and all(
        _holds(one, own) for one in rows(selector, "matchExpressions")
    )


def _holds(asked: Object, own: Mapping[str, str]) -> bool:
    value, values = own.get(text(asked, "key")), texts(asked, "values")
    match text(asked, "operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return True  # no operator that there is: the server would refuse it
