"""Of the doctor: what looks like a fault and is none; certificates; engines without sidecars."""

import base64
import copy
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from epp.control.kube.objects import KV_EVENTS_PORT, SIDECAR
from epp.doctor.examine import examined
from epp.doctor.findings import Level
from epp.doctor.workloads import Container, Deployed
from epp.manifests.overlay import GATEWAYS, Gateway
from tests.fakes.certificates import END, Authority
from tests.manifests.broken import NOW, World, scaled, telling
from tests.manifests.rendered import VARIANTS, rendered


@pytest.mark.parametrize(("gateway", "apart"), VARIANTS)
def test_nothing_is_wrong_with_what_we_ship(gateway: Gateway, apart: bool) -> None:
    assert World(gateway, apart=apart).found() == []


def test_autoscalers_that_keda_makes_are_no_second_owner() -> None:
    world = World("istio")
    world.get("Deployment", "decode")["spec"].pop("replicas")
    scaled(world, "ScaledObject", "one")
    owner = [{"kind": "ScaledObject", "name": "one"}]
    scaled(world, "HorizontalPodAutoscaler", "keda-hpa-one", ownerReferences=owner)
    assert world.found() == []


def test_an_envoy_without_early_stripping_is_found_in_its_configuration() -> None:
    world = World("standalone")
    (config,) = [
        one for one in world.objects if one["kind"] == "ConfigMap" and "envoy.json" in one["data"]
    ]
    said = json.loads(config["data"]["envoy.json"])
    manager = said["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    manager["typed_config"].pop("early_header_mutation_extensions")
    config["data"]["envoy.json"] = yaml.safe_dump(said)
    (found,) = world.found()
    assert (found.check, found.level) == ("headers", Level.ERROR)
    assert "x-gateway-destination-endpoint" in found.what


def test_where_a_gateway_cannot_strip_sealed_lists_do() -> None:
    world = World("gke")
    world.swap("decode", SIDECAR, "--handoff-key-file", None)
    levels = {one.check: one.level for one in world.found()}
    assert levels["headers"] is Level.WARNING


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_objects_of_any_shape_are_looked_at(gateway: Gateway) -> None:
    """Whatever is replaced by something else: findings, and never an exception."""
    for number, one in enumerate(rendered(gateway)):
        for odd in (None, [], "x", 7, {"spec": []}):
            objects = list(rendered(gateway))
            objects[number] = {**one, "spec": odd, "data": odd, "rules": odd}
            assert isinstance(examined(Deployed.of(objects), NOW), list)


def _places(found: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Of everything within."""
    steps = found.items() if isinstance(found, dict) else enumerate(found)
    for step, inner in steps:
        yield (*path, step)
        if isinstance(inner, dict | list):
            yield from _places(inner, *path, step)


def test_objects_with_any_part_replaced_are_looked_at() -> None:
    chance = Random(7)
    odd = (None, [], {}, "x", 7, -1.5, True, [None], [{}], {"a": None}, "tcp://[x:1", "--port=x")
    objects = list(rendered("istio"))
    for _ in range(1000):
        number = chance.randrange(len(objects))
        broken: Any = copy.deepcopy(objects[number])
        *path, last = chance.choice(list(_places(broken)))
        inner = broken
        for step in path:
            inner = inner[step]
        inner[last] = chance.choice(odd)
        changed = [*objects[:number], broken, *objects[number + 1 :]]
        assert isinstance(examined(Deployed.of(changed), NOW), list)


@pytest.mark.parametrize("url", ["http://[x", "http://127.0.0.1:x", "", "8200"])
def test_an_address_that_is_none_is_found_and_breaks_nothing(url: str) -> None:
    world = World("istio")
    world.swap("decode", SIDECAR, "--engine-url", url or "=")
    assert {one.check for one in world.found()} == {"ports"}
    telling(world, "decode", endpoint=url or "tcp://[")
    assert "events" in {one.check for one in world.found()}


def _with_certificate(directory: Path, *, other_key: bool = False) -> World:
    authority = Authority(directory, "pool")
    shown, key = authority.signs("picker")
    if other_key:
        _, key = authority.signs("another")
    world = World("istio")
    data = {
        name: base64.b64encode(file.read_bytes()).decode()
        for name, file in (("tls.crt", shown), ("tls.key", key))
    }
    metadata = {"name": "epp-tls", "namespace": "team-a"}
    world.objects.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    spec = world.template("epp")["spec"]
    spec["volumes"].append({"name": "tls", "secret": {"secretName": "epp-tls"}})
    mounts = world.container("epp", "epp")["volumeMounts"]
    mounts.append({"name": "tls", "mountPath": "/certs"})
    world.swap("epp", "epp", "--cert-path", "/certs")
    world.swap("epp", "epp", "--enable-cert-reload", "")
    return world


def test_a_certificate_that_holds_is_no_finding(tmp_path: Path) -> None:
    assert _with_certificate(tmp_path).found() == []


@pytest.mark.parametrize(
    ("after", "level", "word"),
    [
        (timedelta(days=-13), Level.WARNING, "is over at 2120-01-01"),
        (timedelta(days=1), Level.ERROR, "is over since 2120-01-01"),
    ],
)
def test_a_certificate_that_ends_is_found(
    tmp_path: Path, after: timedelta, level: Level, word: str
) -> None:
    deployed = Deployed.of(_with_certificate(tmp_path).objects)
    (found,) = examined(deployed, END + after)
    assert (found.check, found.level, found.where) == (
        "certificate",
        level,
        "Secret team-a/epp-tls",
    )
    assert word in found.what


def test_a_key_of_another_certificate_is_found(tmp_path: Path) -> None:
    (found,) = _with_certificate(tmp_path, other_key=True).found()
    assert found.what == "tls.key is not the key of tls.crt"


def test_a_certificate_that_cannot_be_read_is_found(tmp_path: Path) -> None:
    world = _with_certificate(tmp_path)
    world.get("Secret")["data"]["tls.crt"] = "!"
    (found,) = world.found()
    assert found.what.startswith("tls.crt and tls.key cannot be read")


def _plain() -> World:
    """Engines without sidecars, whose KV events pickers follow."""
    world = World("istio", apart=False)
    template = world.template("vllm")
    template["spec"]["initContainers"] = []
    template["metadata"]["annotations"] = {KV_EVENTS_PORT: "5557"}
    telling(world, "vllm", endpoint="tcp://*:5557")
    world.swap("vllm", "vllm", "--port", "8000")
    return world


def test_engines_without_a_sidecar_are_as_good() -> None:
    assert _plain().found() == []


def test_where_plain_engines_tell_what_they_hold_is_compared_with_where_pickers_look() -> None:
    world = _plain()
    telling(world, "vllm", endpoint="tcp://*:5558")
    assert [one.what for one in world.found()] == [
        "pickers look for its KV events at port 5557, it publishes at 5558"
    ]
    telling(world, "vllm", endpoint="tcp://127.0.0.1:5557")
    assert [one.what for one in world.found()] == [
        "it publishes KV events on loopback, where no picker reaches them"
    ]
    world.template("vllm")["metadata"]["annotations"] = {}
    telling(world, "vllm", endpoint="tcp://*:5557")
    assert [one.what for one in world.found()] == [
        "it publishes KV events, and no picker is told where"
    ]
    world.swap("epp", "epp", "--kv-events-port", "5557")
    assert world.found() == []


def test_a_shells_script_is_taken_apart() -> None:
    script = "exec vllm serve $MODEL \\\n  --port=8200 --kv_cache_dtype fp8 --x.a 'b c' --last"
    found = Container(
        name="vllm",
        image="vllm",
        raw={"command": ["/bin/sh", "-c"], "args": [script]},
        environment={"MODEL": "llama"},
    )
    assert found.flags == {
        "--port": "8200",
        "--kv-cache-dtype": "fp8",
        "--x.a": "b c",
        "--last": "",
    }
    assert found.config("--x") == {"a": "b c"}
    assert "llama" in found.words
