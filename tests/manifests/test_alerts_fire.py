"""Each alert fires on series that show its fault, with what it says filled in, and ends with them.

Prometheus' own `promtool` evaluates them, in the long suite; the everyday one holds the series to
the metrics that there are.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests.metrics_known import ADDED, OF_ENGINES, dashboard, metric, rules, rules_spec

CASES = Path(__file__).parents[1] / "data" / "manifests" / "alerts.yaml"
_SERIES = re.compile(r"([\w:]+)\{(.*)\}")
_PAIR = re.compile(r'(\w+)="([^"]*)"')


@cache
def _cases() -> list[Any]:
    return list(yaml.safe_load(CASES.read_text()))


def _series() -> Iterator[tuple[str, dict[str, str]]]:
    for case in _cases():
        for written in case["series"]:
            found = _SERIES.fullmatch(written)
            assert found, written
            yield found[1], dict(_PAIR.findall(found[2]))


def test_each_alert_is_shown_its_fault() -> None:
    assert {case["alert"] for case in _cases()} == {rule["alert"] for rule in rules()}


def test_the_series_that_alerts_are_shown_have_the_labels_that_there_are() -> None:
    for name, labels in _series():
        if name not in OF_ENGINES:
            assert labels.keys() == metric(name)[1] | ADDED, name


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool", path=str(Path(sys.executable).parent))
    found = found or shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: make test-long does that where there is apt-get")
    return found


def _run(*words: str) -> str:
    """What it says; fails where it finds a fault."""
    run = subprocess.run(words, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def _filled(rule: Any, labels: dict[str, str]) -> dict[str, str]:
    """A rule's annotations, as Prometheus fills them in."""
    return {
        name: re.sub(r"\{\{\s*\$labels\.(\w+)\s*\}\}", lambda found: labels[found[1]], said)
        for name, said in rule["annotations"].items()
    }


def _asked(case: Any) -> dict[str, Any]:
    """One case as promtool reads it."""
    rule = next(one for one in rules() if one["alert"] == case["alert"])
    alert = {
        "exp_labels": case["labels"] | rule["labels"],
        "exp_annotations": _filled(rule, case["labels"]),
    }
    whens = [(case["quiet"], []), (case["fires"], [alert]), (case["over"], [])]
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values} for name, values in case["series"].items()
        ],
        "alert_rule_test": [
            {"eval_time": when, "alertname": case["alert"], "exp_alerts": alerts}
            for when, alerts in whens
        ],
    }


@pytest.mark.long
def test_each_alert_fires_on_its_fault_and_ends_with_it(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules_spec()))
    asked = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "15s",
        "tests": list(map(_asked, _cases())),
    }
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(asked))
    assert "SUCCESS" in _run(promtool, "test", "rules", str(tmp_path / "tests.yaml"))


@pytest.mark.long
def test_rules_and_panels_are_what_prometheus_reads(promtool: str, tmp_path: Path) -> None:
    alerts, panels = tmp_path / "rules.yaml", tmp_path / "panels.yaml"
    alerts.write_text(yaml.safe_dump(rules_spec()))
    assert f"{len(rules())} rules found" in _run(promtool, "check", "rules", str(alerts))
    asked = [
        target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())
    ]
    made = [
        {"record": f"panel:{number}", "expr": expr.replace("$__rate_interval", "5m")}
        for number, expr in enumerate(asked)
    ]
    panels.write_text(json.dumps({"groups": [{"name": "panels", "rules": made}]}))
    assert f"{len(made)} rules found" in _run(promtool, "check", "rules", str(panels))
