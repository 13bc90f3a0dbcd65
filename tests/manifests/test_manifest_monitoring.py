"""Alerts and the dashboard ask for metrics that there are, and each alert is explained."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from tests.manifests.rendered import ROOT, named, rendered

DOCS = ROOT.parent / "docs"
PAGES = ("metrics.md", "sidecar-metrics.md")
"""Generated from what declares metrics, and compared with it by tests of their own."""
OF_ENGINES = {"vllm:nixl_num_notifications_after_expiry_total"}
_NAME = re.compile(r"(?<![\w:\"$])((?:epp|llm_d_epp)_\w+|vllm:\w+)")
_SELECTOR = re.compile(r"([\w:]+)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_ADDED = {"namespace", "pod"}
"""Labels that Prometheus gives each target."""


@cache
def _known() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of each metric, by its name."""
    found: dict[str, tuple[str, set[str]]] = {}
    for page in PAGES:
        for line in (DOCS / page).read_text().splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) == 6 and cells[1].startswith("`"):
                labels = set(re.findall(r"`(\w+)`", cells[3]))
                found[cells[1].strip("`")] = (cells[2], labels)
    return found


def _rules() -> list[Any]:
    (made,) = list(yaml.safe_load_all((ROOT / "alerts" / "rules.yaml").read_text()))
    return [rule for group in made["spec"]["groups"] for rule in group["rules"]]


def _dashboard() -> Any:
    return json.loads((ROOT / "dashboards" / "epp.json").read_text())


def _asked() -> Iterator[Any]:
    for rule in _rules():
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in _dashboard()["panels"]:
        for number, target in enumerate(panel.get("targets", ())):
            yield pytest.param(target["expr"], id=f"{panel['title']} {number}")


def _metric(name: str) -> tuple[str, set[str]]:
    """Kind and labels of what a name in an expression stands for."""
    stem = re.sub(r"_(bucket|sum|count)$", "", name)
    if stem != name and _known().get(stem, ("", set()))[0] == "histogram":
        kind, labels = _known()[stem]
        return kind, labels | {"le"}
    assert name in _known(), name
    return _known()[name]


@pytest.mark.parametrize("expr", list(_asked()))
def test_an_expression_asks_for_metrics_and_labels_that_there_are(expr: str) -> None:
    names = set(_NAME.findall(expr))
    assert names
    for name in names - OF_ENGINES:
        kind, _ = _metric(name)
        assert kind != "histogram" or name.endswith(("_bucket", "_sum", "_count")), name
    for name, said in _SELECTOR.findall(expr):
        if name not in OF_ENGINES:
            assert set(_LABEL.findall(said)) <= _metric(name)[1] | _ADDED, name
    labels = set().union(*(_metric(name)[1] for name in names - OF_ENGINES))
    for by in re.findall(r"by \(([^)]*)\)", expr):
        assert {each.strip() for each in by.split(",")} <= labels | _ADDED


@pytest.mark.parametrize("expr", list(_asked()))
def test_counters_are_asked_for_their_rate_and_gauges_are_not(expr: str) -> None:
    rated = set(re.findall(r"(?:rate|increase)\((\S+?)(?:\{[^}]*\})?\[", expr))
    for name in set(_NAME.findall(expr)) - OF_ENGINES:
        assert (_metric(name)[0] != "gauge") == (name in rated), name


def test_each_alert_says_how_bad_it_is_and_what_is_wrong() -> None:
    rules = _rules()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"].endswith(".")


def test_each_alert_is_explained_and_no_other() -> None:
    page = (DOCS / "operations.md").read_text()
    section = page.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `(Epp\w+)` \|", section, re.MULTILINE)
    assert told == [rule["alert"] for rule in _rules()]


def test_what_alerts_say_in_braces_is_a_label_of_their_expression() -> None:
    for rule in _rules():
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            by = re.findall(r"by \(([^)]*)\)", rule["expr"])
            kept = {each.strip() for one in by for each in one.split(",")}
            if not by:
                names = set(_NAME.findall(rule["expr"])) - OF_ENGINES
                kept = _ADDED.union(*(_metric(name)[1] for name in names))
            assert label in kept, rule["alert"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    ids: set[int] = set()
    for panel in _dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert panel["id"] not in ids
        taken |= cells
        ids.add(panel["id"])


def test_both_come_with_the_component_for_monitoring() -> None:
    objects = rendered("istio")
    assert named(objects, "PrometheusRule", "epp")["spec"]["groups"]
    shown = named(objects, "ConfigMap", "epp-dashboard")
    assert json.loads(shown["data"]["epp.json"]) == _dashboard()
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
