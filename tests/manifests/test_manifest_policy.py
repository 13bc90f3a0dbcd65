"""What no rendered object may do, whatever the gateway."""

import copy
import re
from typing import Any

import pytest
import yaml

from epp import protocol
from epp.control.kube.objects import SIDECAR
from epp.manifests.overlay import GATEWAYS, Gateway
from epp.sim.gateway.clusters import pool
from epp.sim.gateway.envoy import EnvoySettings, render
from epp.sim.gateway.modes import ext_proc
from tests.conformance.shipped import SHIPPED
from tests.manifests.rendered import (
    NAMESPACE,
    VARIANTS,
    Object,
    containers,
    named,
    of_kind,
    pods,
    rendered,
)

each_variant = pytest.mark.parametrize(("gateway", "apart"), VARIANTS)
each_gateway = pytest.mark.parametrize("gateway", GATEWAYS)
WRITES_ITS_ROOT = {"vllm"}
"""Containers whose root file system is not read-only: vLLM compiles when it starts."""
STRIPS_NOTHING = {"gke"}
"""Gateways that cannot remove a header before they ask the picker."""


def _each(gateway: Gateway, apart: bool) -> list[tuple[str, Object, Object]]:
    """Deployment, pod, container."""
    return [
        (f"{name}/{one['name']}", template["spec"], one)
        for name, template in pods(rendered(gateway, apart=apart)).items()
        for one in containers(template)
    ]


@each_variant
def test_nobody_is_privileged(gateway: Gateway, apart: bool) -> None:
    for where, pod, one in _each(gateway, apart):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), where
        assert not any("hostPath" in volume for volume in pod.get("volumes", ())), where
        assert pod["securityContext"]["runAsNonRoot"] is True, where
        assert pod["securityContext"]["runAsUser"] >= 100, where
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        security = one["securityContext"]
        assert security["allowPrivilegeEscalation"] is False, where
        assert security["capabilities"] == {"drop": ["ALL"]}, where
        assert "privileged" not in security, where
        read_only = security.get("readOnlyRootFilesystem", False)
        assert read_only == (one["name"] not in WRITES_ITS_ROOT), where
        assert not any("hostPort" in port for port in one.get("ports", ())), where


@each_variant
def test_only_pickers_may_ask_the_api_server(gateway: Gateway, apart: bool) -> None:
    for name, template in pods(rendered(gateway, apart=apart)).items():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is (name == "epp")
        assert ("serviceAccountName" in spec) == (name == "epp")
    kinds = {one["kind"] for one in rendered(gateway, apart=apart)}
    assert not {"ClusterRole", "ClusterRoleBinding", "Secret"} & kinds


@each_variant
def test_every_container_has_a_limit_of_memory_and_a_share_of_cpu(
    gateway: Gateway, apart: bool
) -> None:
    for where, _, one in _each(gateway, apart):
        assert "memory" in one["resources"]["limits"], where
        assert {"cpu", "memory"} <= one["resources"]["requests"].keys(), where


@each_variant
def test_every_container_that_stays_is_probed(gateway: Gateway, apart: bool) -> None:
    for name, template in pods(rendered(gateway, apart=apart)).items():
        stays = [
            one
            for one in containers(template)
            if one in template["spec"]["containers"] or one.get("restartPolicy") == "Always"
        ]
        for one in stays:
            assert {"startupProbe", "livenessProbe"} <= one.keys(), (name, one["name"])
        assert any("readinessProbe" in one for one in stays), name


@each_variant
def test_images_have_a_version(gateway: Gateway, apart: bool) -> None:
    for where, _, one in _each(gateway, apart):
        assert re.fullmatch(r"[^:]+:v?\d+\.\d+\.\d+(-\w+)?", one["image"]), where


@each_variant
def test_every_pod_has_rules_of_who_may_talk_to_it(gateway: Gateway, apart: bool) -> None:
    objects = rendered(gateway, apart=apart)
    policies = [one["spec"] for one in of_kind(objects, "NetworkPolicy")]
    for name, template in pods(objects).items():
        labels = template["metadata"]["labels"]
        mine = [
            policy
            for policy in policies
            if policy["podSelector"]["matchLabels"].items() <= labels.items()
        ]
        directions = {each for policy in mine for each in policy["policyTypes"]}
        assert directions == {"Ingress", "Egress"}, name


@each_variant
def test_requests_and_legs_come_from_the_gateway_pickers_and_the_pool_only(
    gateway: Gateway, apart: bool
) -> None:
    """Port 8000 takes both; monitoring, an add-on, reads the engine's page there."""
    engines = {"llm-d.ai/inference-serving": "true"}
    peers: list[Any] = []
    for one in of_kind(rendered(gateway, apart=apart), "NetworkPolicy"):
        if one["spec"]["podSelector"]["matchLabels"] != engines:
            continue
        for rule in one["spec"].get("ingress", ()):
            ports = {port["port"] for port in rule.get("ports", ())}
            if not ports or 8000 in ports:
                assert rule["from"], one["metadata"]["name"]
                peers += rule["from"]
    assert {"namespaceSelector": {}} not in peers
    assert {"podSelector": {"matchLabels": engines}} in peers
    assert {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "epp"}}} in peers


@each_gateway
def test_routing_headers_of_clients_are_removed_before_the_picker_is_asked(
    gateway: Gateway,
) -> None:
    assert _stripped(gateway) >= (
        set() if gateway in STRIPS_NOTHING else set(protocol.ROUTING_HEADERS)
    )


@each_gateway
def test_no_route_removes_what_the_picker_says(gateway: Gateway) -> None:
    """Filters of a route run after the picker."""
    for route in of_kind(rendered(gateway), "HTTPRoute"):
        assert all("filters" not in rule for rule in route["spec"]["rules"])


def _stripped(gateway: Gateway) -> set[str]:
    objects = rendered(gateway)
    removed: list[str] = []
    for one in objects:
        spec = one.get("spec", {})
        match one["kind"]:
            case "EnvoyFilter" if spec["configPatches"][0]["applyTo"] == "NETWORK_FILTER":
                (patch,) = spec["configPatches"]
                config = patch["patch"]["value"]["typed_config"]
                (early,) = config["early_header_mutation_extensions"]
                removed += [each["remove"] for each in early["typed_config"]["mutations"]]
            case "ClientTrafficPolicy":
                removed += spec["headers"]["earlyRequestHeaders"]["remove"]
            case "AgentgatewayPolicy":
                assert spec["traffic"]["phase"] == "PreRouting"
                removed += spec["traffic"]["transformation"]["request"]["remove"]
            case "ConfigMap" if "envoy.json" in one["data"]:
                (listener,) = yaml.safe_load(one["data"]["envoy.json"])["static_resources"][
                    "listeners"
                ]
                manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
                (early,) = manager["early_header_mutation_extensions"]
                removed += [each["remove"] for each in early["typed_config"]["mutations"]]
    return set(removed)


def test_where_nothing_is_removed_sidecars_believe_sealed_lists_only() -> None:
    for gateway in STRIPS_NOTHING:
        for where, _, one in _each("gke", True):
            if one["name"] == SIDECAR or where == "epp/epp":
                assert "--handoff-key-file=/keys/handoff" in one["args"], (gateway, where)


def test_the_standalone_envoy_is_the_one_that_runs_in_tests() -> None:
    config = next(
        one for one in of_kind(rendered("standalone"), "ConfigMap") if "envoy.json" in one["data"]
    )
    (tested,) = [each for each in SHIPPED if each.name == "original-dst"]
    here = {"listen_host": "0.0.0.0", "ext_proc_host": "epp-replicas"}
    settings = {"listen_port": 8080, "admin_port": 9901, "ext_proc_port": 9002, "endpoints": []}
    made: Any = EnvoySettings(shape="original-dst", **{**settings, **here})
    assert config["data"]["envoy.json"] == render(made)
    plain: Any = EnvoySettings(shape="original-dst", **settings)
    assert render(plain) == tested.file.read_text()
    envoy = named(rendered("standalone"), "Service", "epp-replicas")["spec"]
    assert (envoy["clusterIP"], envoy["publishNotReadyAddresses"]) == ("None", True)


def test_istio_is_given_the_filter_and_the_balancing_that_run_in_tests() -> None:
    objects = rendered("istio-response-none")
    picking, balancing = named(objects, "EnvoyFilter", "picker")["spec"]["configPatches"]
    tested: Any = ext_proc("standalone", response_trailers="skip", fail_open=False)["typed_config"]
    given = copy.deepcopy(picking["patch"]["value"]["typed_config"])
    assert given["grpc_service"]["envoy_grpc"].pop("cluster_name") == (
        f"outbound|9002||epp.{NAMESPACE}.svc.cluster.local"
    )
    tested["grpc_service"]["envoy_grpc"].pop("cluster_name")
    assert given == tested
    policy = pool([], picked=True)["load_balancing_policy"]
    assert balancing["patch"]["value"] == {"load_balancing_policy": policy}
    service = f"engines.{NAMESPACE}.svc.cluster.local"
    assert balancing["match"]["cluster"] == {"service": service}


@pytest.mark.parametrize("gateway", [each for each in GATEWAYS if each.endswith("-response-none")])
def test_where_the_filter_is_ours_no_gateway_builds_another(gateway: Gateway) -> None:
    objects = rendered(gateway)
    assert not list(of_kind(objects, "InferencePool"))
    (route,) = of_kind(objects, "HTTPRoute")
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    service = named(objects, "Service", backend["name"])
    assert backend["port"] in {port["port"] for port in service["spec"]["ports"]}
