"""`epp local up`: how it ends, whatever the reason, it leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.conftest import Running, local_up
from tests.timing import scaled


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def assert_nothing_left(running: Running) -> None:
    deadline = time.monotonic() + scaled(5)
    while left := {name for name, pid in running.pids.items() if not gone(pid)}:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def test_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    with local_up(tmp_path, "--engines", "1") as running:
        assert set(running.pids) == {"engine-0", "sidecar-0", "epp", "envoy"}
        assert not any(map(gone, running.pids.values()))
        assert running.end(signal.SIGINT) == 0
        assert_nothing_left(running)


def test_a_fleet_that_splits_says_who_does_what(tmp_path: Path) -> None:
    flags = ("--prefill", "1", "--decode", "2", "--split", "always")
    with local_up(tmp_path, *flags) as running:
        engines = {"prefill-0", "decode-0", "decode-1"}
        assert set(running.pids) == engines | {f"sidecar-{name}" for name in engines} | {
            "epp",
            "envoy",
        }
        with urllib.request.urlopen(str(running.map["endpoints"]), timeout=scaled(5)) as page:
            endpoints = json.loads(page.read())["endpoints"]
        assert sorted(one["role"] for one in endpoints) == ["decode", "decode", "prefill"]


@pytest.mark.parametrize("part", ["engine-0", "epp"])
def test_a_part_that_dies_ends_all_of_it_with_its_last_words(tmp_path: Path, part: str) -> None:
    with local_up(tmp_path, "--engines", "1") as running:
        os.kill(running.pids[part], signal.SIGKILL)
        assert running.process.wait(scaled(20)) == 1
        assert_nothing_left(running)
        said = running.errors.read_text()
        assert f"{part} was killed by signal 9" in said
        assert f"{part}.log" in said


def test_with_restart_a_part_that_dies_starts_again_and_the_rest_stays(tmp_path: Path) -> None:
    with local_up(tmp_path, "--engines", "1", "--restart") as running:
        for part in ("engine-0", "epp"):
            os.kill(running.pids.pop(part), signal.SIGKILL)
        deadline = time.monotonic() + scaled(30)
        while (status := completed(running.gateway)) != 200:
            assert time.monotonic() < deadline, f"{status}: {running.errors.read_text()}"
            time.sleep(0.2)
        assert running.end(signal.SIGINT) == 0
        assert_nothing_left(running)
        said = running.errors.read_text()
        for part in ("engine-0", "epp"):
            assert f"{part} was killed by signal 9: it starts again" in said


def completed(gateway: str) -> int:
    """The status of a request, or 0."""
    body = json.dumps({"model": "sim", "prompt": "p", "max_tokens": 1}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{gateway}/v1/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=scaled(5)) as answer:
            assert answer.headers["x-request-id"]
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_nothing_is_left_when_the_command_itself_is_killed(tmp_path: Path) -> None:
    with local_up(tmp_path, "--engines", "1") as running:
        assert running.end(signal.SIGKILL) == -signal.SIGKILL
        assert_nothing_left(running)


def test_an_end_while_starting_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "epp.cli", "local", "up", "--auto-ports", "--engines", "1"]
    with subprocess.Popen(
        [*command, "--dir", str(tmp_path / "run")], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "envoy starting" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(scaled(20)) == 0
    of_this_run = subprocess.run(
        ["pgrep", "-f", str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert of_this_run.stdout == ""


def test_a_second_fleet_on_the_same_ports_is_told_which_one_is_taken(tmp_path: Path) -> None:
    with local_up(tmp_path, "--engines", "1") as running:
        base = running.gateway.rpartition(":")[2]
        second = subprocess.run(
            [sys.executable, "-m", "epp.cli", "local", "up", "--port-base", base],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=scaled(30),
            check=False,
        )
        assert second.returncode == 2
        assert f"port {base} (the gateway (Envoy))" in second.stderr
        assert "--auto-ports" in second.stderr
        assert running.process.poll() is None
