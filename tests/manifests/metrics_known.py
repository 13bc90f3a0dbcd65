"""The metrics that there are, and the alerts and panels that ask for them."""

import json
import re
from functools import cache
from typing import Any

import yaml

from tests.manifests.rendered import ROOT

DOCS = ROOT.parent / "docs"
PAGES = ("metrics.md", "sidecar-metrics.md")
"""Generated from what declares metrics, and compared with it by tests of their own."""
OF_ENGINES = {"vllm:nixl_num_notifications_after_expiry_total"}
ADDED = {"namespace", "pod"}
"""Labels that Prometheus gives each target."""


@cache
def known() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of each metric, by its name."""
    found: dict[str, tuple[str, set[str]]] = {}
    for page in PAGES:
        for line in (DOCS / page).read_text().splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) == 6 and cells[1].startswith("`"):
                labels = set(re.findall(r"`(\w+)`", cells[3]))
                found[cells[1].strip("`")] = (cells[2], labels)
    return found


def metric(name: str) -> tuple[str, set[str]]:
    """Kind and labels of what a name in an expression stands for."""
    stem = re.sub(r"_(bucket|sum|count)$", "", name)
    if stem != name and known().get(stem, ("", set()))[0] == "histogram":
        kind, labels = known()[stem]
        return kind, labels | {"le"}
    assert name in known(), name
    return known()[name]


def rules_spec() -> Any:
    """What Prometheus itself is given of the PrometheusRule."""
    (made,) = list(yaml.safe_load_all((ROOT / "alerts" / "rules.yaml").read_text()))
    return made["spec"]


def rules() -> list[Any]:
    return [rule for group in rules_spec()["groups"] for rule in group["rules"]]


def dashboard() -> Any:
    return json.loads((ROOT / "dashboards" / "epp.json").read_text())
