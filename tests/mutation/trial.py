"""Run the tests of a module against one mutant of it: a forked child imports the mutant instead.

The parent has what others made imported, but nothing that may import a module under change, so that
a child costs little more than the tests themselves. It never has a thread.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import CodeType, ModuleType

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mutation.mutants import Mutant

PROFILE = "mutants"
"""Hypothesis without chance, and without making a failure small: that it failed is enough."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A mutant of a module, and whether its tests noticed."""

    module: str
    mutant: Mutant
    killed: bool


class _Instead(MetaPathFinder, Loader):
    """Gives one module this code."""

    def __init__(self, module: str, code: CodeType) -> None:
        self._module = module
        self._code = code

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        return spec_from_loader(name, self, origin=self._code.co_filename)

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def prepare() -> None:
    """Import what children share. Call once, before the first of them."""
    os.environ["HYPOTHESIS_PROFILE"] = PROFILE
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    settings.register_profile(
        PROFILE,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    for name in (
        "google.protobuf.json_format",
        "aiohttp",
        "msgspec",
        "numpy",
        "pydantic",
        "structlog",
        "yaml",
        "epp._pb.extproc_pb2",
        "epp.protocol",
        "epp.errors",
    ):
        __import__(name)


def run(tests: Sequence[str], module: str = "", code: CodeType | None = None) -> int:
    """Fork a child that runs `tests`, stopping at the first failure; gives its pid."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    if code is not None:
        sys.meta_path.insert(0, _Instead(module, code))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # Hypothesis is here already
    # Whatever goes wrong in the child must end it: it shares its parent's stack.
    status = 3
    try:
        status = int(pytest.main([*options, *tests]))
    finally:
        os._exit(status)


def usual_s(tests: Sequence[str]) -> float | None:
    """Seconds that the tests take without a mutant; None when they fail."""
    begun = time.monotonic()
    _, status = os.waitpid(run(tests), 0)
    return None if os.waitstatus_to_exitcode(status) else time.monotonic() - begun


def trials(
    work: Iterable[tuple[str, Mutant, Sequence[str]]], *, parallel: int, limit_s: float
) -> Iterator[Trial]:
    """Try each (module, mutant, tests), several at once. A mutant that hangs is noticed."""
    waiting = iter(work)
    live: dict[int, tuple[str, Mutant, float]] = {}
    more = True
    while more or live:
        while more and len(live) < parallel:
            following = next(waiting, None)
            if following is None:
                more = False
                break
            module, mutant, tests = following
            pid = run(tests, module, mutant.code)
            live[pid] = (module, mutant, time.monotonic() + limit_s)
        time.sleep(0.01)
        for pid, (module, mutant, deadline) in list(live.items()):
            late = time.monotonic() > deadline
            if late:
                os.killpg(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if ended:
                del live[pid]
                yield Trial(module, mutant, os.waitstatus_to_exitcode(status) != 0)
