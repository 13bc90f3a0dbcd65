"""Code of earlier releases, as this checkout's history has it."""

import shutil
import subprocess
import tarfile
import tomllib
from io import BytesIO
from pathlib import Path

import pytest

from tests.contract.wire import RECORDINGS

ROOT = Path(__file__).parents[2]
PARTS = ("epp", "scorers", "sidecar", "pyproject.toml")


def code_of(release: str, place: Path) -> Path:
    """The tree in which this release's words were recorded, laid out to be run; skips where there
    is no such history."""
    recorded = RECORDINGS / f"{release}.json"
    found = _git("log", "--diff-filter=A", "--format=%H", "-1", "--", str(recorded))
    if not found:
        pytest.skip("this checkout has no history: no code of a release before is at hand")
    commit = found.decode().strip()
    with tarfile.open(fileobj=BytesIO(_git("archive", commit, *PARTS))) as archive:
        archive.extractall(place, filter="data")
    _announce(place, release)
    return place


def _git(*words: str) -> bytes:
    program = shutil.which("git")
    if program is None:
        return b""
    run = subprocess.run([program, *words], check=False, capture_output=True, cwd=ROOT)
    return run.stdout if run.returncode == 0 else b""


def _announce(place: Path, release: str) -> None:
    """Its own plugins, as an installation of it would list them."""
    project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
    folder = place / f"gie_epp-{release}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: gie-epp\nVersion: {release}\n")
    lines: list[str] = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {where}" for name, where in entries.items()), ""]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    packages = [part for part in PARTS if (place / part).is_dir()]
    (folder / "RECORD").write_text("".join(f"{one}/__init__.py,,\n" for one in packages))
