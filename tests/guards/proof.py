"""Show that a fault test fails once its protection is gone, on a copy of the tree.

A test that hangs counts as failing: its time limit ends it. One that could not even be collected,
or that failed for a name that is no longer there, shows nothing: the program is broken then, not
unprotected.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.util import cache_from_source
from pathlib import Path

from tests.guards.entries import Guard, mutated
from tests.timing import scaled

HANGS_AFTER_S = 60.0
"""Time limit of a test that names none itself, without the machine's scale."""
GIVEN_UP_AFTER_S = 300.0
"""Time limit of a whole run of one guard."""

_BROKEN = re.compile(
    r"^(?:FAILED|ERROR) .* - (?:NameError|UnboundLocalError|ImportError|ModuleNotFoundError|"
    r"SyntaxError|IndentationError)\b",
    re.MULTILINE,
)
_FAILED, _PASSED, _NOT_RUN = 1, 0, (2, 3, 4, 5)


class Verdict(Enum):
    """What became of one guard."""

    GUARDS = "guards"
    SLEEPS = "passes without its protection"
    BREAKS = "breaks the program instead of disabling the protection"
    GIVEN_UP = "took too long to tell"


@dataclass(frozen=True, slots=True)
class Proof:
    """One guard, tried."""

    guard: Guard
    verdict: Verdict
    took_s: float
    output: str


class Tree:
    """A copy of the working tree in which protections can be disabled, one at a time."""

    def __init__(self, source: Path, root: Path) -> None:
        shutil.copytree(source, root, ignore=_left_out, symlinks=True)
        self.root = root

    def disable(self, guard: Guard) -> Proof:
        """Run the guard's test without its protection, then put it back."""
        path = self.root / guard.file
        whole = path.read_text()
        begun = time.monotonic()
        try:
            _write(path, mutated(whole, guard))
            code, output = self.run([guard.test], "-x")
        finally:
            _write(path, whole)
        return Proof(guard, _verdict(code, output), time.monotonic() - begun, output)

    def run(self, tests: Iterable[str], *options: str) -> tuple[int | None, str]:
        """pytest's exit code, None when it took too long, and what it printed."""
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "--no-header"),
            *("-p", "no:cacheprovider", "-p", "no:randomly"),
            *(f"--timeout={scaled(HANGS_AFTER_S):.0f}", *options, *tests),
        ]
        # Subprocesses of the tests must import the copy as well, not what is installed.
        env = os.environ | {"PYTHONPATH": str(self.root), "COLUMNS": "400"}
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as pytest:
            try:
                output, _ = pytest.communicate(timeout=scaled(GIVEN_UP_AFTER_S))
            except subprocess.TimeoutExpired:
                os.killpg(pytest.pid, 9)
                output, _ = pytest.communicate()
                return None, output
        return pytest.returncode, output

    def imports_itself(self) -> bool:
        """Whether `import epp` finds this copy; anything else would prove nothing."""
        found = subprocess.run(
            [sys.executable, "-c", "import epp; print(epp.__file__)"],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(self.root)},
            capture_output=True,
            text=True,
            check=True,
        )
        return Path(found.stdout.strip()).is_relative_to(self.root.resolve())


def _verdict(code: int | None, output: str) -> Verdict:
    if code is None:
        return Verdict.GIVEN_UP
    if code == _PASSED:
        return Verdict.SLEEPS
    if code in _NOT_RUN or _BROKEN.search(output):
        return Verdict.BREAKS
    assert code == _FAILED, code
    return Verdict.GUARDS


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    # Two versions of one size within one second would share their bytecode.
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _left_out(_: str, names: Sequence[str]) -> set[str]:
    return {
        name
        for name in names
        if (name.startswith(".") and name != ".ci") or name in {"__pycache__", "dist"}
    }
