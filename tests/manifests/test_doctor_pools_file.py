"""The doctor knows the pools of a pools file, where a ConfigMap holds it."""

import pytest

from epp.control.kube.objects import SIDECAR
from epp.doctor.findings import Finding, Level
from tests.manifests.broken import World

FILE = """
pools:
  - name: llama
    hosts: [llama.example.com]
    flags: {handoff-key-file: /keys/handoff}
  - name: qwen
    hosts: ["*.qwen.example.com"]
    flags: {endpoint-selector: "app=qwen", endpoint-target-ports: [8000, 8001]}
"""


def _several(text: str = FILE, *, apart: bool = False) -> World:
    """The overlay for Istio, whose picker reads its pools from a file."""
    world = World("istio", apart=apart)
    world.swap("epp", "epp", "--pool-name", None)
    world.swap("epp", "epp", "--handoff-key-file", None)
    world.swap("epp", "epp", "--pools-file", "/pools/pools.yaml")
    metadata = {"name": "pools", "namespace": "team-a"}
    data = {"pools.yaml": text}
    world.objects.append(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    )
    spec = world.template("epp")["spec"]
    spec["volumes"].append({"name": "pools", "configMap": {"name": "pools"}})
    mounts = world.container("epp", "epp")["volumeMounts"]
    mounts.append({"name": "pools", "mountPath": "/pools"})
    return world


def _one(found: list[Finding], word: str) -> Finding:
    (one,) = [each for each in found if word in each.what]
    return one


def test_each_pool_of_the_file_is_looked_at_with_its_own_flags() -> None:
    (found,) = _several().found()
    assert (found.check, found.level) == ("labels", Level.ERROR)
    assert found.what == "no pod template in namespace team-a has the labels app=qwen"


def test_a_pool_is_held_to_its_own_flags_and_the_picker_s_of_the_command_line() -> None:
    world = _several(FILE.replace("flags: {handoff-key-file: /keys/handoff}", ""), apart=True)
    assert _one(world.found(), "no key to seal").check == "handoff"
    world = _several(FILE.replace("/keys/handoff}", "/keys/handoff, redis-streams: 4}"))
    assert _one(world.found(), "--state-streams").check == "store"
    world = _several()
    world.swap("vllm", SIDECAR, "--pool-name", "other")
    assert "--pool-name=other, the picker llama" in _one(world.found(), "other").what


def test_an_inferencepool_that_the_file_does_not_name_is_found() -> None:
    found = _several(FILE.replace("name: llama", "name: mistral")).found()
    assert _one(found, "serves other pools only").level is Level.ERROR
    assert _one(found, "there is no InferencePool mistral").level is Level.ERROR


@pytest.mark.parametrize(
    "text", ["", "{", "pools: 7", "pools: [1]", "2026-99-99", "- a", "pools: {name: a}"]
)
def test_a_file_that_cannot_be_read_is_a_note(text: str) -> None:
    assert {one.level for one in _several(text).found()} >= {Level.NOTE}
    assert _one(_several(text).found(), "/pools/pools.yaml").check == "labels"


def test_a_file_is_found_under_another_key_and_in_a_projected_volume() -> None:
    world = _several()
    spec = world.template("epp")["spec"]
    (data,) = [one for one in world.objects if one["metadata"]["name"] == "pools"]
    data["data"] = {"key": FILE}
    source = {"name": "pools", "items": [{"key": "key", "path": "pools.yaml"}]}
    spec["volumes"][-1] = {"name": "pools", "projected": {"sources": [{"configMap": source}]}}
    assert _one(world.found(), "app=qwen")
    mount = world.container("epp", "epp")["volumeMounts"][-1]
    mount |= {"mountPath": "/pools/pools.yaml", "subPath": "pools.yaml"}
    assert _one(world.found(), "app=qwen")
    spec["volumes"][-1] = {"name": "pools", "secret": {"secretName": "pools"}}
    assert _one(world.found(), "are not looked at").level is Level.NOTE
