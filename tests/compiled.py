"""A plugin of pytest for `make test-compiled`: no test runs unless each module that ought to be
compiled is, and nothing is imported from the checkout in its place."""

import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from pathspec import GitIgnoreSpec

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    for name in modules():
        spec = find_spec(name)
        origin = "nothing" if spec is None else str(spec.origin)
        if not origin.endswith(".so"):
            raise pytest.UsageError(f"{name} is {origin}, and not compiled")


def modules() -> Iterator[str]:
    """Those that pyproject.toml has compiled."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    wanted, left_out = (GitIgnoreSpec.from_lines(hook[key]) for key in ("include", "exclude"))
    for package in ("epp", "sidecar"):
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT)
            if wanted.match_file(file) and not left_out.match_file(file):
                yield ".".join(file.with_suffix("").parts)
