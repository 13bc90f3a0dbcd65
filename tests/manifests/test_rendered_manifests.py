"""Each overlay renders with either kind of engines, and what is named in one is there."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from epp.commands.manifests import KEYS
from epp.config.serve import ServeSettings
from epp.control.files import ROLE_LABEL
from epp.control.kube.cluster import POOL_VERSIONS
from epp.control.kube.declared import GROUPS, OBJECTIVES, REWRITES
from epp.control.kube.objects import SIDECAR
from epp.manifests.overlay import GATEWAYS, Gateway
from epp.sim.gateway.routes import API_PATHS
from tests.manifests.rendered import (
    APART,
    NAMESPACE,
    POOL,
    ROOT,
    SUMMARY,
    VARIANTS,
    Object,
    container,
    containers,
    flags,
    kustomize,
    named,
    of_kind,
    pods,
    rendered,
    summary,
)

each_variant = pytest.mark.parametrize(("gateway", "apart"), VARIANTS)
each_gateway = pytest.mark.parametrize("gateway", GATEWAYS)
ENGINES = {True: ("prefill", "decode"), False: ("vllm",)}


def test_what_is_rendered_is_what_the_summary_says() -> None:
    assert SUMMARY.read_text() == summary(), "python -m tests.manifests.rendered"


@each_gateway
def test_an_overlay_renders_by_itself_too(gateway: Gateway) -> None:
    objects = tuple(kustomize(ROOT / "overlays" / gateway))
    assert named(objects, "Deployment", "epp")


def test_every_overlay_can_be_asked_for() -> None:
    assert {each.name for each in (ROOT / "overlays").iterdir()} == set(GATEWAYS)


@each_gateway
def test_what_was_tested_of_an_overlay_stands_in_it_and_in_the_table(gateway: Gateway) -> None:
    first = (ROOT / "overlays" / gateway / "kustomization.yaml").read_text().splitlines()[0]
    told = re.fullmatch(r"# Data plane: (tested in real Envoy|rendered only)\.", first)
    assert told
    row = next(
        line
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith(f"| `{gateway}` |")
    )
    assert row.split("|")[-2].strip() == told[1]


@each_variant
def test_everything_is_in_the_pools_namespace(gateway: Gateway, apart: bool) -> None:
    for one in rendered(gateway, apart=apart):
        if one["kind"] != "Namespace":
            assert one["metadata"]["namespace"] == NAMESPACE, one["metadata"]["name"]


@each_variant
def test_there_are_as_many_pods_as_were_asked_for(gateway: Gateway, apart: bool) -> None:
    deployments = of_kind(rendered(gateway, apart=apart), "Deployment")
    counts = {one["metadata"]["name"]: one["spec"]["replicas"] for one in deployments}
    assert counts["epp"] >= 2
    assert counts["redis"] == 1
    assert {name: counts[name] for name in ENGINES[apart]} == (APART if apart else {"vllm": 3})


@each_variant
def test_selectors_find_the_pods_that_they_are_for(gateway: Gateway, apart: bool) -> None:
    objects = rendered(gateway, apart=apart)
    labels = {name: template["metadata"]["labels"] for name, template in pods(objects).items()}
    for one in of_kind(objects, "Deployment"):
        wanted = one["spec"]["selector"]["matchLabels"]
        found = [name for name, has in labels.items() if wanted.items() <= has.items()]
        assert found == [one["metadata"]["name"]]
    for one in of_kind(objects, "Service"):
        wanted = one["spec"]["selector"]
        found = [name for name, has in labels.items() if wanted.items() <= has.items()]
        assert found, one["metadata"]["name"]
        for name in found:
            ports = {
                port.get("name"): port["containerPort"]
                for each in containers(pods(objects)[name])
                for port in each.get("ports", ())
            }
            targets = [port["targetPort"] for port in one["spec"]["ports"]]
            assert all(target in ports or target in ports.values() for target in targets)


@each_variant
def test_engines_are_the_members_of_the_pool(gateway: Gateway, apart: bool) -> None:
    objects = rendered(gateway, apart=apart)
    said = flags(container(objects, "epp", "epp"))
    pool = list(of_kind(objects, "InferencePool"))
    if pool:
        (one,) = pool
        assert one["metadata"]["name"] == POOL
        assert one["apiVersion"].split("/")[0] == ServeSettings.model_fields["pool_group"].default
        wanted = one["spec"]["selector"]["matchLabels"]
        ports = [port["number"] for port in one["spec"]["targetPorts"]]
    else:
        pairs = said["--endpoint-selector"].split(",")
        wanted = dict(pair.split("=") for pair in pairs)
        ports = [int(port) for port in said["--endpoint-target-ports"].split(",")]
    for name, template in pods(objects).items():
        is_engine = name in ENGINES[apart]
        assert (wanted.items() <= template["metadata"]["labels"].items()) == is_engine, name
        if is_engine:
            sidecar = flags(container(objects, name, SIDECAR))
            assert ports == [int(sidecar["--port"])]


def test_roles_are_told_where_they_are_apart() -> None:
    for name, template in pods(rendered("standalone")).items():
        told = template["metadata"]["labels"].get(ROLE_LABEL)
        assert told == (name if name in APART else None)


@each_variant
def test_what_names_the_pool_names_it(gateway: Gateway, apart: bool) -> None:
    objects = rendered(gateway, apart=apart)
    pool = {one["metadata"]["name"] for one in of_kind(objects, "InferencePool")}
    for one in _references(list(objects)):
        if one.get("kind") == "InferencePool":
            assert {one["name"]} == pool
    config = next(one for one in of_kind(objects, "ConfigMap") if "POOL_NAME" in one["data"])
    assert config["data"]["POOL_NAME"] == POOL


def _references(value: Any) -> Iterator[Object]:
    if isinstance(value, dict):
        if "name" in value and "kind" in value:
            yield value
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


@each_gateway
def test_a_route_lets_pass_what_users_call_and_no_more(gateway: Gateway) -> None:
    routes = list(of_kind(rendered(gateway), "HTTPRoute"))
    assert bool(routes) == (gateway != "standalone")
    for route in routes:
        (rule,) = route["spec"]["rules"]
        assert [match["path"]["value"] for match in rule["matches"]] == list(API_PATHS)
        (parent,) = route["spec"]["parentRefs"]
        assert named(rendered(gateway), "Gateway", parent["name"])


@each_variant
def test_what_pods_mount_is_there(gateway: Gateway, apart: bool) -> None:
    objects = rendered(gateway, apart=apart)
    configs = {one["metadata"]["name"]: one["data"] for one in of_kind(objects, "ConfigMap")}
    for template in pods(objects).values():
        volumes = {one["name"]: one for one in template["spec"].get("volumes", ())}
        for volume in volumes.values():
            for item in volume.get("secret", {}).get("items", ()):
                assert item["key"] in KEYS
            config = volume.get("configMap", {})
            for item in config.get("items", ()):
                assert item["key"] in configs[config["name"]]
            assert not config or config["name"] in configs
        for each in containers(template):
            for mount in each.get("volumeMounts", ()):
                assert mount["name"] in volumes
            for source in each.get("envFrom", ()):
                assert source["configMapRef"]["name"] in configs


def test_every_key_is_somebodys() -> None:
    mounted: dict[str, set[str]] = {key: set() for key in KEYS}
    for objects in (rendered("standalone"), rendered("standalone", apart=False)):
        for name, template in pods(objects).items():
            for volume in template["spec"].get("volumes", ()):
                for item in volume.get("secret", {}).get("items", ()):
                    mounted[item["key"]].add(name)
    engines = {"vllm", "prefill", "decode"}
    assert mounted == {
        "handoff": {"epp", *engines},
        "leg": engines,
        "salt": {"epp", *engines},
        "redis-picker": {"epp", "redis"},
        **{f"redis-{name}": {name, "redis"} for name in engines},
    }


def test_a_picker_may_read_what_it_watches_and_nothing_else() -> None:
    role = named(rendered("standalone"), "Role", "epp")
    may = {
        (group, kind): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    }
    watched = {("", "pods"), *((group, "inferencepools") for group in POOL_VERSIONS)}
    watched |= {(group, kind) for group in GROUPS for kind in (OBJECTIVES, REWRITES)}
    assert may == {one: {"list", "watch"} for one in watched}


def test_upstream_kinds_come_by_pinned_urls() -> None:
    said = yaml.safe_load((ROOT / "crds" / "kustomization.yaml").read_text())
    for url in said["resources"]:
        assert re.fullmatch(r"https://\S+/(v\d+\.\d+\.\d+|[0-9a-f]{40})/\S+\.yaml", url), url
