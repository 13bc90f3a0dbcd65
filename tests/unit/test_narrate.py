"""What people see while a fleet comes up."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from epp.sim.fleets.narrate import Narrator, program, show_map
from epp.sim.promises.claims import Result
from epp.sim.promises.demo import report, show, time_scale


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_elsewhere_than_on_a_terminal_each_event_is_a_plain_line() -> None:
    text, clock = io.StringIO(), Clock()
    narrator = Narrator(2, clock, Console(file=text))
    with narrator:
        narrator("engine-0", "starting")
        clock.now += 1.5
        narrator("engine-0", "ready")
        narrator.doing("checking …")
    assert text.getvalue() == "  0.0 s  engine-0 starting\n  1.5 s  engine-0 ready\nchecking …\n"


def test_a_terminal_shows_one_moving_line() -> None:
    text = io.StringIO()
    narrator = Narrator(3, Clock(), Console(file=text, force_terminal=True, width=80))
    with narrator:
        for name in ("a", "b"):
            narrator(name, "starting")
        narrator("a", "ready")
    assert "engine" not in text.getvalue()
    assert "\x1b[" in text.getvalue()


def test_the_map_says_what_to_do_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "epp")])
    monkeypatch.chdir(tmp_path)
    fleet = SimpleNamespace(
        supervisor=SimpleNamespace(parts=list),
        settings=SimpleNamespace(model="sim"),
        gateway="http://127.0.0.1:8080",
        admin="http://127.0.0.1:9091",
        metrics="http://127.0.0.1:9090/metrics",
        run_dir=tmp_path,
    )
    show_map(cast("Any", fleet), Console(file=io.StringIO()))
    told = capsys.readouterr().out
    assert "bin/epp explain ID --admin http://127.0.0.1:9091 " in told
    assert "bin/epp top --admin http://127.0.0.1:9091\n" in told
    assert "curl -i http://127.0.0.1:8080/v1/completions" in told


def test_a_program_on_the_path_is_called_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = tmp_path / "epp"
    found.write_text("")
    found.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for called in (str(found), "epp/cli.py"):
        monkeypatch.setattr(sys, "argv", [called])
        assert program() == "epp"


RESULTS = [Result("water is wet", "it was", True), Result("pigs fly", "none did", False)]


def test_the_table_of_claims_says_which_do_not_hold() -> None:
    text = io.StringIO()
    show(RESULTS, 12.3, Console(file=text, width=80))
    lines = [line.split() for line in text.getvalue().splitlines()]
    assert ["water", "is", "wet", "it", "was", "yes"] in lines
    assert ["pigs", "fly", "none", "did", "NO"] in lines
    assert "1 of 2 claims hold; 12 s" in text.getvalue()


def test_machines_get_the_same_claims() -> None:
    assert '"holds": false' in report(RESULTS, 1.0)
    assert '"holds": true' in report(RESULTS[:1], 1.0)


def test_limits_stretch_only_by_a_sensible_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, scale in (("4", 4.0), ("0", 1.0), ("-1", 1.0), ("nan", 1.0), ("x", 1.0)):
        monkeypatch.setenv("EPP_TIME_SCALE", text)
        assert time_scale() == scale
