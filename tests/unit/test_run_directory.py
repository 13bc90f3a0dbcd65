"""Where a fleet keeps its logs and settings."""

import os
import subprocess
from pathlib import Path

import pytest

from epp.sim.fleets.fleet import KEPT_RUNS, run_directory


def ended_run(runs: Path, name: str, age_s: int) -> Path:
    run = runs / f"run-{name}"
    run.mkdir(parents=True)
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    (run / "owner.pid").write_text(f"{gone.pid}\n")
    stamp = run.stat().st_mtime - age_s
    os.utime(run, (stamp, stamp))
    return run


def test_a_wanted_directory_is_made_and_kept(tmp_path: Path) -> None:
    wanted = tmp_path / "a" / "b"
    assert run_directory(wanted, tmp_path / "runs") == wanted
    assert run_directory(wanted, tmp_path / "runs") == wanted
    assert not (tmp_path / "runs").exists()


def test_each_run_has_a_directory_of_its_own(tmp_path: Path) -> None:
    first, second = (run_directory(None, tmp_path / "runs") for _ in range(2))
    assert first != second
    assert first.parent == second.parent == tmp_path / "runs"


def test_the_oldest_ended_runs_are_removed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    old = [ended_run(runs, str(age), age) for age in range(KEPT_RUNS + 2)]
    made = run_directory(None, runs)
    left = set(runs.iterdir())
    assert left == {made, *old[: KEPT_RUNS - 1]}


def test_a_run_that_goes_on_is_never_removed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    mine = [run_directory(None, runs) for _ in range(KEPT_RUNS + 3)]
    assert set(runs.iterdir()) == set(mine)


def test_a_place_that_cannot_be_written_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    made = run_directory(None, tmp_path / "file" / "runs")
    assert made.parent == tmp_path
