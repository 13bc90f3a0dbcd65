"""What the Containerfiles do: read in the everyday suite, and in the long one done for real."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from epp.manifests.overlay import IMAGES
from tests.manifests.rendered import container, pods, rendered
from tests.timing import scaled

ROOT = Path(__file__).parents[2]
PREFIX = "/opt/epp"
BUILD_TOOLS = {"pip", "setuptools", "wheel", "hatchling", "virtualenv", "pytest", "ruff", "mypy"}


@dataclass(frozen=True)
class Image:
    """A Containerfile, by its stages."""

    file: str
    command: str
    ports: set[int]
    compiled: bool = False

    @property
    def stages(self) -> list[list[tuple[str, str]]]:
        """Instructions and their arguments, of each stage."""
        text = (ROOT / "containers" / self.file).read_text().replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        stages: list[list[tuple[str, str]]] = [[]]
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "FROM":
                stages.append([])
            stages[-1].append((word, rest.strip()))
        return stages

    def said(self, stage: int, word: str) -> list[str]:
        return [rest for each, rest in self.stages[stage] if each == word]


EPP = Image("Containerfile.epp", "serve", {9002, 9003, 9090})
SIDECAR = Image("Containerfile.sidecar", "sidecar", {8000, 9092})
COMPILED = replace(SIDECAR, compiled=True)
each_image = pytest.mark.parametrize("image", [EPP, SIDECAR], ids=lambda one: one.command)


@each_image
def test_an_image_runs_as_nobody_and_builds_nothing(image: Image) -> None:
    assert len(image.stages) == 3  # what is asked for, the build, the image
    assert image.said(2, "USER") == ["65532:65532"]
    assert not any("install" in step or "apt" in step for step in image.said(2, "RUN"))
    assert any("pip*" in step for step in image.said(2, "RUN"))
    assert image.said(2, "COPY") == [f"--from=build {PREFIX} {PREFIX}"]
    assert {int(port) for port in image.said(2, "EXPOSE")[0].split()} == image.ports
    assert json.loads(image.said(2, "ENTRYPOINT")[0]) == ["epp"]
    assert json.loads(image.said(2, "CMD")[0]) == [image.command]


def test_both_images_have_one_base() -> None:
    first, second = (image.said(0, "ARG") for image in (EPP, SIDECAR))
    assert first[0] == second[0]
    assert second[1:] == ["BUILD=${PYTHON}"]
    assert re.fullmatch(r"PYTHON=docker\.io/library/python:3\.\d+-slim", first[0])


def test_manifests_run_images_as_they_are_made() -> None:
    objects = rendered("standalone")
    picker = container(objects, "epp", "epp")
    sidecar = container(objects, "decode", "epp-sidecar")
    for one, image in ((picker, EPP), (sidecar, SIDECAR)):
        assert one["command"] == ["epp", image.command]
        assert {port["containerPort"] for port in one["ports"]} <= image.ports
        assert one["image"].rpartition("/")[2].partition(":")[0] in IMAGES
        writes = [each["mountPath"] for each in one["volumeMounts"] if not each.get("readOnly")]
        assert writes == ["/tmp"]
    assert pods(objects)["epp"]["spec"]["securityContext"]["runAsUser"] == 65532


@dataclass(frozen=True)
class Installed:
    """What the build stage made, at another place."""

    image: Image
    prefix: Path
    home: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.prefix / "bin" / "epp", *words],
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            env=self.environment,
        )

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.prefix}/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}

    @property
    def files(self) -> dict[str, int]:
        """With the times of their last change."""
        found = (path for path in self.prefix.rglob("*") if path.is_file())
        return {str(path): path.stat().st_mtime_ns for path in found}


@pytest.fixture(scope="module", params=[EPP, SIDECAR, COMPILED], ids=["epp", "sidecar", "compiled"])
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    """By the very steps of the build stage, from the files that it copies and no others."""
    image: Image = request.param
    home = tmp_path_factory.mktemp("image")
    source, prefix = home / "src", home / "epp"
    source.mkdir()
    for step in image.said(1, "COPY"):
        *names, to = step.split()
        for name in names:
            _copy(ROOT / name, source, name, to)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for step in image.said(1, "RUN"):
        words = shlex.split(step.replace(PREFIX, str(prefix)))
        made = subprocess.run(
            words,
            check=False,
            capture_output=True,
            text=True,
            cwd=source,
            env={**os.environ, "PATH": path, "HATCH_BUILD_HOOKS_ENABLE": f"{image.compiled:d}"},
        )
        assert made.returncode == 0, made.stderr
    shutil.rmtree(source)
    yield Installed(image, prefix, home)
    shutil.rmtree(home)


def _copy(what: Path, source: Path, name: str, to: str) -> None:
    if what.is_dir():
        shutil.copytree(what, source / to, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        folder = source / to
        folder.mkdir(exist_ok=True)
        shutil.copy(what, folder / Path(name).name)


def _pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


@pytest.mark.long
def test_an_image_has_what_the_lock_file_says_and_its_list_says_so(installed: Installed) -> None:
    listed = json.loads((installed.prefix / "sbom.cdx.json").read_text())
    assert (listed["bomFormat"], listed["metadata"]["component"]["name"]) == (
        "CycloneDX",
        "gie-epp",
    )
    found = {
        re.sub(r"[-_.]+", "-", one["name"]).lower(): one["version"] for one in listed["components"]
    }
    pinned = _pinned()
    assert {name: pinned.get(name) for name in found} == found
    assert not BUILD_TOOLS & found.keys()
    assert {"grpcio", "aiohttp", "redis", "opentelemetry-sdk"} <= found.keys()
    assert ("tokenizers" in found) == (installed.image is EPP)
    folders = {path.name for path in installed.prefix.glob("lib/python*/site-packages/*")}
    assert len([name for name in folders if name.endswith(".dist-info")]) == len(found) + 1
    refs = {one["purl"] for one in listed["components"]} | {"pkg:pypi/gie-epp@0.1.0"}
    assert {one["ref"] for one in listed["dependencies"]} == refs
    assert all(set(one["dependsOn"]) <= refs for one in listed["dependencies"])


@pytest.mark.long
def test_commands_start_from_an_image(installed: Installed, tmp_path: Path) -> None:
    before = installed.files
    said = "0.1.0 (compiled sidecar)\n" if installed.image.compiled else "0.1.0\n"
    assert installed.run("version").stdout == said
    for command in ("serve", "sidecar", "doctor", "check"):
        shown = installed.run(command, "--help")
        assert shown.returncode == 0, shown.stderr
    made = ("--pool", "a", "--model", "m", "--engines", "1", "--out", str(tmp_path / "a"))
    assert installed.run("manifests", *made).returncode == 0
    assert (tmp_path / "a" / "gie-epp" / "base" / "picker.yaml").is_file()
    assert installed.files == before  # its root may be read-only


@pytest.mark.long
def test_what_an_image_is_for_starts_and_ends(installed: Installed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                installed.prefix / "bin" / "epp",
                installed.image.command,
                *_words(installed, tmp_path),
            ],
            stdout=out,
            stderr=out,
            cwd="/",
            env=installed.environment,
        )
    try:
        port = _metrics_port(process, log)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            assert b"epp_" in page.read()
    finally:
        process.terminate()
        code = process.wait(60)
    assert code == 0, log.read_text()


def _words(installed: Installed, folder: Path) -> list[str]:
    if installed.image is not EPP:
        named = ["--pool-name=a", "--name=b", "--host=127.0.0.1", "--state-url=tcp://127.0.0.1:9"]
        return [*named, "--port=0", "--metrics-port=0"]
    endpoints = folder / "endpoints.yaml"
    endpoints.write_text("endpoints: [{name: a, address: 127.0.0.1, port: 9}]")
    ports = ("grpc-port", "grpc-health-port", "metrics-port", "admin-port", "state-port")
    free = [f"--{name}=0" for name in ports]
    return [f"--endpoints-file={endpoints}", "--host=127.0.0.1", *free]


def _metrics_port(process: subprocess.Popen[bytes], log: Path) -> int:
    """As its log tells it."""
    until = time.monotonic() + scaled(10)
    while process.poll() is None and time.monotonic() < until:
        found = re.search(r'"metrics(?:_port)?": ?(\d+)', log.read_text())
        if found:
            return int(found[1])
        time.sleep(0.05)
    raise AssertionError(log.read_text())
