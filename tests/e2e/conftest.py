"""One fleet for the whole session, started as a user starts it: `epp local up --json`."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.timing import scaled


@dataclass(frozen=True, slots=True)
class Running:
    """A fleet in a process of its own."""

    process: subprocess.Popen[str]
    map: dict[str, Any]
    errors: Path
    """What it wrote on stderr."""

    @property
    def gateway(self) -> str:
        return str(self.map["gateway"])

    @property
    def pids(self) -> dict[str, int]:
        return {part["name"]: part["pid"] for part in self.map["parts"]}

    def end(self, how: signal.Signals = signal.SIGINT) -> int:
        """Ask it to end; gives its exit code."""
        self.process.send_signal(how)
        return self.process.wait(scaled(20))


@contextmanager
def local_up(directory: Path, *flags: str) -> Iterator[Running]:
    """`epp local up` on free ports, until the block ends. Yields when everything is ready."""
    errors = directory / "stderr"
    command = [sys.executable, "-m", "epp.cli", "local", "up", "--json", "--auto-ports"]
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [*command, "--dir", str(directory / "run"), *flags],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"the fleet did not come up: {errors.read_text()}"
            yield Running(process, json.loads(line), errors)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(scaled(20))
                except subprocess.TimeoutExpired:
                    process.kill()


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Three engines behind a standalone Envoy. Tests must leave it as it was."""
    with local_up(tmp_path_factory.mktemp("fleet"), "--engines", "3") as running:
        yield running
