"""Alerts and the dashboard ask for metrics that there are, and each alert is explained."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.manifests.metrics_known import ADDED, DOCS, OF_ENGINES, dashboard, metric, rules
from tests.manifests.rendered import named, rendered

_NAME = re.compile(r"(?<![\w:\"$])((?:epp|llm_d_epp)_\w+|vllm:\w+)")
_SELECTOR = re.compile(r"([\w:]+)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_UNITS = {
    "seconds": "s",
    "utilization": "percentunit",
}
"""Of a panel, by the last word of what it shows as it is."""


def _asked() -> Iterator[Any]:
    for rule in rules():
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in dashboard()["panels"]:
        for number, target in enumerate(panel.get("targets", ())):
            yield pytest.param(target["expr"], id=f"{panel['title']} {number}")


@pytest.mark.parametrize("expr", list(_asked()))
def test_an_expression_asks_for_metrics_and_labels_that_there_are(expr: str) -> None:
    names = set(_NAME.findall(expr))
    assert names
    for name in names - OF_ENGINES:
        kind, _ = metric(name)
        assert kind != "histogram" or name.endswith(("_bucket", "_sum", "_count")), name
    for name, said in _SELECTOR.findall(expr):
        if name not in OF_ENGINES:
            assert set(_LABEL.findall(said)) <= metric(name)[1] | ADDED, name
    labels = set().union(*(metric(name)[1] for name in names - OF_ENGINES))
    for by in re.findall(r"by \(([^)]*)\)", expr):
        assert {each.strip() for each in by.split(",")} <= labels | ADDED


@pytest.mark.parametrize("expr", list(_asked()))
def test_counters_are_asked_for_their_rate_and_gauges_are_not(expr: str) -> None:
    rated = set(re.findall(r"(?:rate|increase)\((\S+?)(?:\{[^}]*\})?\[", expr))
    for name in set(_NAME.findall(expr)) - OF_ENGINES:
        assert (metric(name)[0] != "gauge") == (name in rated), name


def test_each_alert_says_how_bad_it_is_and_what_is_wrong() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"].endswith(".")


def test_each_alert_is_explained_and_no_other() -> None:
    page = (DOCS / "operations.md").read_text()
    section = page.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `(Epp\w+)` \|", section, re.MULTILINE)
    assert told == [rule["alert"] for rule in rules()]


def test_what_alerts_say_in_braces_is_a_label_of_their_expression() -> None:
    for rule in rules():
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            by = re.findall(r"by \(([^)]*)\)", rule["expr"])
            kept = {each.strip() for one in by for each in one.split(",")}
            if not by:
                names = set(_NAME.findall(rule["expr"])) - OF_ENGINES
                kept = ADDED.union(*(metric(name)[1] for name in names))
            assert label in kept, rule["alert"]


@pytest.mark.parametrize("panel", dashboard()["panels"], ids=lambda panel: panel["title"])
def test_a_panel_has_the_unit_of_what_it_shows(panel: Any) -> None:
    for target in panel.get("targets", ()):
        names = _NAME.findall(target["expr"])
        stems = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in names}
        shown = {_UNITS.get(stem.rpartition("_")[2]) for stem in stems} - {None}
        rated = "rate(" in target["expr"] and "histogram_quantile" not in target["expr"]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert shown == ({unit} if unit in _UNITS.values() else set())
        assert unit != "reqps" or rated


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    ids: set[int] = set()
    for panel in dashboard()["panels"]:
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
    assert json.loads(shown["data"]["epp.json"]) == dashboard()
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
