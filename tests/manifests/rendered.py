"""The manifests as `kubectl` renders them, and a summary of each that is kept beside the tests.

`python -m tests.manifests.rendered` writes the summary anew.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from epp.commands.manifests import shipped
from epp.manifests.overlay import GATEWAYS, Gateway, Wanted, written

Object = dict[str, Any]

ROOT = Path(__file__).parents[2] / "manifests"
SUMMARY = Path(__file__).parents[1] / "data" / "manifests" / "summary.txt"
POOL = "llama"
NAMESPACE = "team-a"
APART = {"prefill": 2, "decode": 4}
TOGETHER = {"engines": 3}
VARIANTS: list[tuple[Gateway, bool]] = [
    (each, apart) for each in GATEWAYS for apart in (True, False)
]
"""Each gateway with prefill and decode apart, and with pods that do both."""


def wanted(gateway: Gateway, *, apart: bool, **more: Any) -> Wanted:
    counts: dict[str, Any] = APART if apart else TOGETHER
    settings = {
        "pool": POOL,
        "namespace": NAMESPACE,
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gateway": gateway,
        "monitoring": True,
        "registry": "registry.example.com/team",
    }
    return Wanted(**{**settings, **counts, **more})


def kustomize(folder: Path) -> list[Object]:
    program = Path(sys.executable).parent / "kubectl"
    run = subprocess.run(
        [program, "kustomize", folder], check=False, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return list(yaml.safe_load_all(run.stdout))


@cache
def _rendered(gateway: Gateway, apart: bool) -> tuple[Object, ...]:
    with tempfile.TemporaryDirectory() as name:
        for path, data in written(wanted(gateway, apart=apart), shipped(), "a test").items():
            place = Path(name) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return tuple(kustomize(Path(name)))


def rendered(gateway: Gateway, *, apart: bool = True) -> tuple[Object, ...]:
    """What `kubectl apply -k` would apply. Not to be changed: it is shared."""
    return _rendered(gateway, apart)


def of_kind(objects: tuple[Object, ...], kind: str) -> Iterator[Object]:
    return (one for one in objects if one["kind"] == kind)


def named(objects: tuple[Object, ...], kind: str, name: str) -> Object:
    (found,) = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name]
    return found


def pods(objects: tuple[Object, ...]) -> dict[str, Object]:
    """Pod templates by the name of their Deployment."""
    deployments = of_kind(objects, "Deployment")
    return {one["metadata"]["name"]: one["spec"]["template"] for one in deployments}


def containers(template: Object) -> list[Object]:
    spec = template["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def container(objects: tuple[Object, ...], deployment: str, name: str) -> Object:
    (found,) = [one for one in containers(pods(objects)[deployment]) if one["name"] == name]
    return found


def flags(of: Object) -> dict[str, str]:
    """Values by flag, of arguments written `--flag=value`; a switch has none."""
    pairs = [word.partition("=") for word in of["args"] if word.startswith("--")]
    return {flag: value for flag, _, value in pairs}


def summary() -> str:
    """What each variant has: objects, and once what is inside of each Deployment."""
    lines: list[str] = []
    told: dict[tuple[str, ...], str] = {}
    for gateway, apart in VARIANTS:
        variant = f"{gateway}, {'prefill and decode' if apart else 'aggregated'}"
        lines.append(variant)
        for one in rendered(gateway, apart=apart):
            line = f"  {one['kind']} {_plain(one['metadata']['name'])}"
            more = tuple(_inside(one)) if one["kind"] == "Deployment" else ()
            before = told.setdefault(more, variant) if more else variant
            lines.append(line if before == variant else f"{line}: as in {before}")
            lines += more if before == variant else ()
    return "\n".join(lines) + "\n"


def _inside(deployment: Object) -> Iterator[str]:
    yield f"    {deployment['spec']['replicas']} pods"
    for each in containers(deployment["spec"]["template"]):
        yield f"    {each['name']}: {each['image']}"
        yield from (f"      {word}" for word in each.get("args", ()))


def _plain(name: str) -> str:
    """Without the hash of a generated ConfigMap."""
    head, _, tail = name.rpartition("-")
    return head if len(tail) == 10 and head in _GENERATED else name


_GENERATED = {"epp-pool", "epp-redis", "vllm-drain", "gateway-envoy"}


if __name__ == "__main__":
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    SUMMARY.write_text(summary())
