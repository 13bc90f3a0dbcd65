"""The doctor knows whom network policies let in: by labels, expressions, namespaces and blocks."""

from typing import Any

import pytest

from epp.doctor.findings import Finding
from epp.doctor.network import let_in, may_reach
from epp.doctor.workloads import Deployed, Workload
from tests.manifests.broken import World


def _kept_out(world: World) -> list[Finding]:
    return [one for one in world.found() if one.check == "ports"]


def _rules(world: World, policy: str) -> list[Any]:
    rules: list[Any] = world.get("NetworkPolicy", policy)["spec"]["ingress"]
    return rules


@pytest.mark.parametrize("policy", ["gateway-to-engines", "gateway-to-epp"])
def test_a_rule_for_our_own_pods_lets_no_gateway_in(policy: str) -> None:
    """The pickers' own rule opens the engines' port, too."""
    world = World("istio", apart=False)
    world.remove("NetworkPolicy", "monitoring-to-engines")
    assert world.found() == []
    world.remove("NetworkPolicy", policy)
    (found,) = _kept_out(world)
    assert "let no gateway in" in found.what


def test_the_gateway_that_is_there_has_to_come_through() -> None:
    world = World("standalone", apart=False)
    (rule,) = _rules(world, "gateway-to-engines")
    rule["from"] = [{"podSelector": {"matchLabels": {"app": "another"}}}]
    (found,) = _kept_out(world)
    assert found.where == "Deployment team-a/vllm"
    rule.pop("from")
    assert not _kept_out(world)
    world.get("NetworkPolicy", "gateway")["spec"]["egress"].pop()  # to engines
    (found,) = _kept_out(world)
    assert "egress" in found.fix


def test_pickers_have_to_reach_engines_and_sidecars_those_that_prefill() -> None:
    world = World("istio")
    engines = _rules(world, "engines")
    engines.remove(engines[0])  # of pickers
    assert {one.what for one in _kept_out(world)} == {
        "network policies keep Deployment team-a/epp away from its port 8000"
    }
    world = World("istio")
    engines = _rules(world, "engines")
    engines.remove(engines[1])  # of engines
    away = {(one.where, one.what) for one in _kept_out(world)}
    assert ("Deployment team-a/prefill", _away("decode")) in away
    assert not [one for one in away if one[0] == "Deployment team-a/decode"]
    world = World("istio")
    world.get("NetworkPolicy", "epp")["spec"]["egress"].pop()  # to engines
    assert "Deployment team-a/epp away" in _kept_out(world)[0].what


def test_all_of_a_pool_have_to_reach_its_redis() -> None:
    world = World("istio")
    _rules(world, "redis")[0]["from"].pop(0)  # of pickers
    (found,) = _kept_out(world)
    assert (found.where, found.what) == ("Deployment team-a/redis", _away("epp", 6379))
    world = World("istio")
    egress = world.get("NetworkPolicy", "engines")["spec"]["egress"]
    egress.remove(next(rule for rule in egress if rule.get("ports") == [{"port": 6379}]))
    assert {one.what for one in _kept_out(world)} == {
        _away("prefill", 6379),
        _away("decode", 6379),
    }


def _away(name: str, port: int = 8000) -> str:
    return f"network policies keep Deployment team-a/{name} away from its port {port}"


def _pods(name: str, namespace: str = "a", **own: str) -> Workload:
    return Workload(
        kind="Deployment",
        namespace=namespace,
        name=name,
        labels={"app": name, **own},
        annotations={},
        replicas=1,
        spec={},
        containers=(),
    )


def _policy(peer: Any, ports: Any = None, **more: Any) -> dict[str, Any]:
    rule = {"from": [peer]} | ({} if ports is None else {"ports": ports})
    selector = {"matchLabels": {"app": "engine"}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "x", "namespace": "a"},
        "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": [rule], **more},
    }


def _space(name: str, **own: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": own}}


def _by(key: str, operator: str, *values: str) -> dict[str, Any]:
    expression = {"key": key, "operator": operator, "values": list(values)}
    return {"podSelector": {"matchExpressions": [expression]}}


ANYWHERE: dict[str, Any] = {"namespaceSelector": {}}


@pytest.mark.parametrize(
    ("peer", "source", "comes"),
    [
        ({"podSelector": {}}, _pods("x"), True),
        ({"podSelector": {}}, _pods("x", "b"), False),
        ({"podSelector": {"matchLabels": {"app": "x"}}}, _pods("y"), False),
        ({"ipBlock": {"cidr": "10.0.0.0/8"}}, _pods("x", "b"), True),
        (_by("app", "In", "x", "y"), _pods("y"), True),
        (_by("app", "In", "x"), _pods("y"), False),
        (_by("app", "NotIn", "x"), _pods("x"), False),
        (_by("app", "NotIn", "x"), _pods("y"), True),
        (_by("role", "Exists"), _pods("x"), False),
        (_by("role", "Exists"), _pods("x", role="a"), True),
        (_by("role", "DoesNotExist"), _pods("x", role="a"), False),
        (_by("role", "DoesNotExist"), _pods("x"), True),
        (ANYWHERE, _pods("x", "b"), True),
        (ANYWHERE | {"podSelector": {"matchLabels": {"app": "y"}}}, _pods("x", "b"), False),
        ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, _pods("x", "b"), True),
        ({"namespaceSelector": {"matchLabels": {"team": "c"}}}, _pods("x", "b"), False),
        (
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}},
            _pods("x", "b"),
            True,
        ),
        (
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "d"}}},
            _pods("x", "c"),
            False,
        ),
        ({"namespaceSelector": {"matchLabels": {"team": "d"}}}, _pods("x", "c"), True),  # unknown
    ],
)
def test_a_peer_means_whom_its_selectors_mean(peer: Any, source: Workload, comes: bool) -> None:
    deployed = Deployed.of([_policy(peer), _space("b", team="b")])
    assert may_reach(source, _pods("engine"), 8000, deployed) is comes


@pytest.mark.parametrize(
    ("ports", "opened"),
    [
        (None, True),
        ([], True),
        ([{"port": 8000}], True),
        ([{"port": 7999}, {"protocol": "TCP"}], True),
        ([{"port": 7000, "endPort": 8000}], True),
        ([{"port": 7000, "endPort": 7999}], False),
        ([{"port": "http"}], False),
    ],
)
def test_a_rule_opens_the_ports_that_it_says(ports: Any, opened: bool) -> None:
    deployed = Deployed.of([_policy({"podSelector": {}}, ports)])
    assert bool(let_in(_pods("engine"), 8000, deployed)) is opened


def test_policies_of_others_close_nothing_and_egress_counts_where_it_is_said() -> None:
    other = _pods("other")
    shut = {"egress": [], "podSelector": {}}
    assert let_in(other, 8000, Deployed.of([_policy({"podSelector": {}})])) is None
    deployed = Deployed.of([_policy({}, **shut, policyTypes=["Egress"])])
    assert not may_reach(other, _pods("engine"), 8000, deployed)
    assert may_reach(_pods("x", "b"), _pods("engine"), 8000, deployed)
