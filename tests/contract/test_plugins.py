"""What every installed plugin keeps: `epp.framework.contract`, over ours and anybody else's."""

import pytest

from epp.framework import contract
from epp.framework.registry import Kind, PluginType
from tests.contract.installed import build, documentation, example, installed

DECIDING = (
    Kind.SCORER,
    Kind.FILTER,
    Kind.PICKER,
    Kind.HANDLER,
    Kind.DECIDER,
    Kind.DETECTOR,
    Kind.ADMITTER,
)
PLUGINS = list(installed(*Kind))
DECIDERS = list(installed(*DECIDING))


def breach(make: contract.Make) -> str:
    """What the contract says against a plugin; empty where it is kept."""
    try:
        contract.check(make)
    except contract.Broken as broken:
        return str(broken)
    return ""


@pytest.mark.parametrize("kind", DECIDERS, ids=lambda kind: kind.name)
def test_it_keeps_the_contract(kind: PluginType) -> None:
    assert breach(lambda: build(kind)) == ""


@pytest.mark.parametrize(
    "kind",
    [kind for kind in DECIDERS if not any(one.required for one in kind.parameters)],
    ids=lambda kind: kind.name,
)
def test_it_keeps_the_contract_by_its_defaults(kind: PluginType) -> None:
    assert breach(lambda: kind.build({})) == ""


@pytest.mark.parametrize("kind", PLUGINS, ids=lambda kind: kind.name)
def test_its_documentation_names_its_type_and_parameters_and_its_example_builds(
    kind: PluginType,
) -> None:
    text = documentation(kind)
    assert f"`{kind.name}`" in text
    assert not [one.yaml_name for one in kind.parameters if f"`{one.yaml_name}" not in text]
    assert set(example(kind)) <= {one.yaml_name for one in kind.parameters}
    build(kind)
