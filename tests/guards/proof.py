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
from xml.etree import ElementTree

from tests.guards.entries import Guard, mutated
from tests.timing import scaled

PATIENCE_S = 10.0
"""How long a test may hang, beyond several times what it takes with its protection."""
TIMES = 4.0
GIVEN_UP_AFTER_S = 300.0
"""Time limit of a whole run of one guard, without the machine's scale."""

_BROKEN = re.compile(
    r"^(?:FAILED|ERROR) .* - (?:NameError|UnboundLocalError|ImportError|ModuleNotFoundError|"
    r"SyntaxError|IndentationError)\b",
    re.MULTILINE,
)
_FAILED, _PASSED, _NOTHING = 1, 0, 5
_NOT_RUN = (2, 3, 4, _NOTHING)
_SHORT = ("-m", "not long")
"""Of a parametrised test the everyday cases are enough; one that is long altogether runs."""


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

    def disable(self, guard: Guard, usual_s: float) -> Proof:
        """Run the guard's test without its protection, then put it back.

        `usual_s`: what the test takes with it.
        """
        path = self.root / guard.file
        whole = path.read_text()
        begun = time.monotonic()
        try:
            _write(path, mutated(whole, guard))
            limit = f"--timeout={PATIENCE_S + TIMES * usual_s:.0f}"
            code, output = self.run([guard.test], "-x", limit, *_SHORT)
            if code == _NOTHING:
                code, output = self.run([guard.test], "-x", limit)
        finally:
            _write(path, whole)
        return Proof(guard, _verdict(code, output), time.monotonic() - begun, output)

    def run(
        self, tests: Iterable[str], *options: str, limit: bool = True
    ) -> tuple[int | None, str]:
        """pytest's exit code, None when it took too long, and what it printed."""
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "--no-header"),
            *("-p", "no:cacheprovider", "-p", "no:randomly"),
            *options,
            *tests,
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
                output, _ = pytest.communicate(timeout=scaled(GIVEN_UP_AFTER_S) if limit else None)
            except subprocess.TimeoutExpired:
                os.killpg(pytest.pid, 9)
                output, _ = pytest.communicate()
                return None, output
        return pytest.returncode, output

    def usual(self, tests: Sequence[str]) -> tuple[dict[str, float], str]:
        """Seconds that each test takes with every protection in place: of a parametrised one, its
        slowest case. Tests that failed are missing; the output says why."""
        taken, failed, output = self._timed(tests, *_SHORT)
        long = [test for test in tests if test not in taken | failed]
        if long:
            more, also_failed, told = self._timed(long)
            taken, failed, output = taken | more, failed | also_failed, output + told
        return {test: took for test, took in taken.items() if test not in failed}, output

    def _timed(
        self, tests: Sequence[str], *options: str
    ) -> tuple[dict[str, float], dict[str, float], str]:
        """Seconds of the tests that ran, those of them that failed, and what pytest said."""
        report = self.root / "usual.xml"
        report.unlink(missing_ok=True)
        _, output = self.run(
            tests, f"--junit-xml={report}", "-o", "junit_family=xunit1", *options, limit=False
        )
        taken: dict[str, float] = {}
        failed: dict[str, float] = {}
        cases = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else ()
        for case in cases:
            test = f"{case.get('file')}::{str(case.get('name')).partition('[')[0]}"
            taken[test] = max(taken.get(test, 0.0), float(case.get("time", "0")))
            if any(each.tag in {"failure", "error"} for each in case):
                failed[test] = taken[test]
        return taken, failed, output

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
