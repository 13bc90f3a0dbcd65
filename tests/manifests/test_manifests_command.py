"""`epp manifests`: what is written, and what is refused."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from epp.commands.manifests import INSTALLED, KEYS, manifests, shipped
from epp.errors import ConfigError
from epp.manifests.overlay import GATEWAYS, PARTS, written
from epp.manifests.parts import needed
from tests.manifests.rendered import ROOT, container, kustomize, named, of_kind, wanted

LEAST = ["--pool", "llama", "--model", "m", "--prefill", "2", "--decode", "4"]


def _run(*words: str, code: int = 0) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "epp.cli", "manifests", *words],
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == code, run.stderr
    return run.stdout + run.stderr


def test_a_written_overlay_is_ready_to_be_applied(tmp_path: Path) -> None:
    out = tmp_path / "llama"
    said = _run(*LEAST, "--gateway", "istio", "--out", str(out))
    for word in (*KEYS, f"kubectl apply -k {out}\n", f"kubectl apply -k {out}/{PARTS}/crds"):
        assert word in said
    objects = tuple(kustomize(out))
    assert named(objects, "InferencePool", "llama")["metadata"]["namespace"] == "llama"
    (namespace,) = of_kind(objects, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    first = (out / "kustomization.yaml").read_text().splitlines()[0]
    assert first == f"# Written by: epp manifests {' '.join(LEAST)} --gateway istio --out {out}"


def test_what_is_there_is_written_over_only_when_that_is_said(tmp_path: Path) -> None:
    mine = tmp_path / "kustomization.yaml"
    mine.write_text("mine")
    assert "--force" in _run(*LEAST, "--out", str(tmp_path), code=2)
    assert mine.read_text() == "mine"
    _run(*LEAST, "--out", str(tmp_path), "--force")
    assert yaml.safe_load(mine.read_text())["namespace"] == "llama"


def test_without_a_gateway_api_its_kinds_are_not_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "llama"
    assert "crds" not in _run(*LEAST, "--out", str(out))
    assert not (out / PARTS / "crds").exists()


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"pool": "Llama"}, "--pool"),
        ({"pool": "a" * 64}, "--pool"),
        ({"namespace": "a_b"}, "--namespace"),
        ({"model": "a b"}, "--model"),
        ({"model": ""}, "--model"),
        ({"registry": "a b"}, "--registry"),
        ({"tag": "-x"}, "--tag"),
        ({"prefill": 0}, "--decode"),
        ({"decode": 0}, "--decode"),
        ({"engines": 1}, "--engines"),
        ({"prefill": 0, "decode": 0}, "--engines"),
        ({"prefill": 1001}, "1000"),
        ({"gpus": 0}, "--gpus"),
        ({"gpus": 65}, "--gpus"),
        ({"engine_args": ("--port=1",)}, "--engine-arg"),
        ({"engine_args": ("--kv-transfer-config={}",)}, "--engine-arg"),
        ({"engine_args": ("--tensor-parallel-size=2",)}, "--engine-arg"),
        ({"engine_args": ("max-model-len",)}, "--engine-arg"),
        ({"prefill": -1}, "1000"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        wanted("standalone", apart=True, **more)


def test_engines_get_their_gpus_and_arguments(tmp_path: Path) -> None:
    out = tmp_path / "llama"
    json_value = '--hf-overrides={"a": "b c"}'
    more = ["--gpus", "4", "--engine-arg=--max-model-len=8192", f"--engine-arg={json_value}"]
    _run(*LEAST, *more, "--out", str(out))
    for name in ("prefill", "decode"):
        engine = container(tuple(kustomize(out)), name, "vllm")
        assert engine["resources"]["limits"]["nvidia.com/gpu"] == "4"
        added = engine["args"][-3:]
        assert added == ["--tensor-parallel-size=4", "--max-model-len=8192", json_value]
        assert any(word.startswith("--kv-transfer-config") for word in engine["args"])


def test_the_command_of_the_readme_works(tmp_path: Path) -> None:
    block = (ROOT / "README.md").read_text().split("```sh\n")[1].split("```")[0]
    command, apply = block.replace("\\\n", " ").splitlines()
    words = command.split()
    assert words[:2] == ["epp", "manifests"]
    assert apply == f"kubectl apply -k {words[-1]}"
    _run(*words[2:-1], str(tmp_path / "out"))
    assert kustomize(tmp_path / "out")


def test_the_parts_are_in_the_wheel_and_found_there(tmp_path: Path) -> None:
    said = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
    into = said["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert into == {"manifests": f"epp/{INSTALLED}"}
    with pytest.raises(ConfigError, match="missing"):
        shipped(tmp_path)
    (tmp_path / INSTALLED / "base").mkdir(parents=True)
    (tmp_path / INSTALLED / "base" / "x").write_bytes(b"y")
    assert shipped(tmp_path) == {"base/x": b"y"}


def test_a_thousand_pods_are_no_error() -> None:
    assert wanted("istio", apart=True, prefill=1000).replicas == {"prefill": 1000, "decode": 4}


def test_only_what_is_needed_is_written() -> None:
    files = written(wanted("standalone", apart=False, monitoring=False), shipped(), "")
    parts = {path.split("/", 1)[1] for path in files if path.startswith(f"{PARTS}/")}
    assert {path.split("/")[0] for path in parts} == {
        "base",
        "components",
        "engines",
        "envoy",
        "overlays",
    }
    assert not any("prefill" in path or "monitoring" in path or "istio" in path for path in parts)


def test_a_folder_without_a_kustomization_is_told() -> None:
    tree = {"a/kustomization.yaml": b"resources: [../b]", "b/x.yaml": b""}
    with pytest.raises(ConfigError, match="b has no"):
        needed(tree, ("a",))


def test_a_name_of_another_place_is_no_part() -> None:
    tree = {"a/kustomization.yaml": b"resources: ['https://example.com/x.yaml']"}
    assert needed(tree, ("a",)) == tree


def test_the_command_offers_every_gateway() -> None:
    assert get_args(get_type_hints(manifests)["gateway"]) == GATEWAYS


def test_what_is_shipped_is_the_folder_of_the_checkout() -> None:
    files = {path for path in ROOT.rglob("*") if path.is_file()}
    assert {ROOT / path for path in shipped()} == files
