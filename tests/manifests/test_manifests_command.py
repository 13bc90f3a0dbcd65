"""`epp manifests`: what is written, and what is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from epp.commands.manifests import KEYS, GatewayKind, shipped
from epp.errors import ConfigError
from epp.manifests.overlay import GATEWAYS, PARTS, written
from epp.manifests.parts import needed
from tests.manifests.rendered import ROOT, kustomize, named, of_kind, wanted

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
        ({"prefill": -1}, "1000"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        wanted("standalone", apart=True, **more)


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
    assert get_args(GatewayKind) == GATEWAYS


def test_what_is_shipped_is_the_folder_of_the_checkout() -> None:
    files = {path for path in ROOT.rglob("*") if path.is_file()}
    assert {ROOT / path for path in shipped()} == files
