"""Pools, routes and gateways keep the schemas and the rules of their upstream definitions."""

from typing import Any

import pytest
import yaml

from epp.manifests.overlay import GATEWAYS, Gateway
from tests.fakes.crds import kinds, read_rule, refusals, rules
from tests.manifests.rendered import ROOT, Object, rendered


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_what_is_rendered_would_be_accepted(gateway: Gateway) -> None:
    for one in rendered(gateway):
        if (one["apiVersion"], one["kind"]) in kinds():
            assert refusals(one) == [], (one["kind"], one["metadata"]["name"])


def _recipes() -> list[Any]:
    return [
        pytest.param(one, id=f"{file.stem}-{one['kind']}")
        for file in sorted((ROOT / "recipes").glob("*.yaml"))
        for one in yaml.safe_load_all(file.read_text())
    ]


@pytest.mark.parametrize("recipe", _recipes())
def test_a_recipe_would_be_accepted(recipe: Object) -> None:
    assert refusals(recipe) == []


def test_what_breaks_a_rule_is_refused() -> None:
    for spoil, field in (
        (lambda spec: spec["endpointPickerRef"].pop("port"), "spec.endpointPickerRef"),
        (lambda spec: spec["targetPorts"].append({"number": 8000}), "spec.targetPorts"),
        (lambda spec: spec.update(selektor=1), "spec.selektor"),
        (lambda spec: spec["targetPorts"].append({"number": 0}), "spec.targetPorts[1].number"),
    ):
        pool = yaml.safe_load((ROOT / "components/inference-pool/inference-pool.yaml").read_text())
        spoil(pool["spec"])
        assert [where for where, _ in refusals(pool)] == [field]


def test_a_backend_may_not_have_more_time_than_its_request() -> None:
    route = yaml.safe_load((ROOT / "recipes/timeouts.yaml").read_text())
    route["spec"]["rules"][0]["timeouts"] = {"request": "1s", "backendRequest": "2s"}
    assert [where for where, _ in refusals(route)] == ["spec.rules[0].timeouts"]


def test_every_rule_of_the_definitions_can_be_read() -> None:
    found = list(rules())
    assert len(found) > 100
    assert all(read_rule(rule) for rule in found)
