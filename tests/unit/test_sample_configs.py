"""Configurations of the reference load as they are, and come to what they say."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from epp.config.picker_config import PickerConfig
from epp.errors import ConfigError
from epp.request.plan import elsewhere
from epp.request.plan.entries import Options
from epp.request.plan.live import build
from epp.request.plan.plan import Plan
from epp.request.plan.resolve import default_plan, resolve

SAMPLES = Path(__file__).parents[1] / "data" / "picker_configs"
SHIPPED = Path(__file__).parents[2] / "manifests" / "config"
DOCS = Path(__file__).parents[2] / "docs" / "scheduling.md"
NAMES = sorted(path.name for path in SAMPLES.glob("*.yaml"))
SHIPPED_NAMES = sorted(path.name for path in SHIPPED.glob("*.yaml"))


def load(name: str, directory: Path = SAMPLES) -> Plan:
    options = Options(allow_experimental=".alpha." in name)
    return resolve((directory / name).read_bytes(), name, options)


def shape(plan: Plan) -> dict[str, Any]:
    """Profile: filters, scorers with weights, picker."""
    return {
        profile.name: (
            [use.reference for use in profile.filters],
            {use.reference: weight for use, weight in profile.scorers},
            profile.picker.reference,
        )
        for profile in plan.profiles.values()
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_loads_and_builds_with_everything_in_use(name: str) -> None:
    plan = load(name)
    assert build(plan).profiles.keys() == plan.profiles.keys()
    assert not [note for note in plan.notes if "nothing refers to" in note]


@pytest.mark.parametrize("name", [name for name in NAMES if ".alpha." in name])
def test_an_experimental_sample_needs_the_flag(name: str) -> None:
    with pytest.raises(ConfigError, match="--allow-experimental-plugins"):
        resolve((SAMPLES / name).read_bytes(), name)


MAX = "max-score-picker"
SHAPES: dict[str, dict[str, Any]] = {
    "default.yaml": {
        "default": (
            [],
            {"queue-scorer": 2.0, "kv-cache-utilization-scorer": 2.0, "prefix-cache-scorer": 3.0},
            MAX,
        )
    },
    "older-group.yaml": {
        "default": ([], {"queue-scorer": 1.0, "kv-cache-utilization-scorer": 1.0}, MAX)
    },
    "hermetic.yaml": {
        "default": (
            [],
            {
                "queue-scorer": 1.0,
                "kv-cache-utilization-scorer": 1.0,
                "prefix-cache-scorer": 1.0,
                "lora-affinity-scorer": 1.0,
            },
            MAX,
        )
    },
    "split.yaml": {
        "prefill": (["prefill-filter"], {"prefix-cache-scorer": 2.0, "queue-scorer": 1.0}, MAX),
        "decode": (["decode-filter"], {"prefix-cache-scorer": 2.0, "queue-scorer": 1.0}, MAX),
    },
    "split-older-names.yaml": {
        "prefill": (["prefill-pods"], {"queue-scorer": 1.0}, MAX),
        "decode": (["decode-pods"], {"prefix-cache-scorer": 2.0}, MAX),
    },
    "encode.yaml": {
        "encode": (["encode-filter"], {"queue-scorer": 1.0}, MAX),
        "prefill": (["prefill-filter"], {"prefix-cache-scorer": 2.0, "queue-scorer": 1.0}, MAX),
        "decode": (["decode-filter"], {"prefix-cache-scorer": 2.0, "queue-scorer": 1.0}, MAX),
    },
    "file-discovery.yaml": {"default": ([], {"queue-scorer": 1.0}, MAX)},
    "data-parallel.yaml": {
        "default": (["decode-filter"], {"prefix-cache-scorer": 2.0}, MAX),
    },
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_sample_comes_to_the_profiles_that_it_says(name: str) -> None:
    assert shape(load(name)) == SHAPES[name]


def test_everything_that_is_listed_runs_where_no_profile_is_written() -> None:
    ((filters, scorers, picker),) = shape(load("load.yaml")).values()
    assert (filters, picker) == (["context-length-aware"], "weighted-random-picker")
    assert set(scorers.values()) == {1.0}
    assert len(scorers) == 5


def test_a_request_is_split_by_the_decider_that_the_handler_names() -> None:
    for name, tokens in (("split.yaml", 16), ("split-older-names.yaml", 512)):
        plan = load(name)
        decider = plan.deciders["prefix-based-pd-decider"]
        assert decider.parameters == {"nonCachedTokens": tokens}


def test_parsers_are_those_that_are_named() -> None:
    assert load("hermetic.yaml").parsers == ("openai-parser",)
    assert load("passthrough.yaml").parsers == ("passthrough-parser",)


def test_producers_feed_what_scorers_read() -> None:
    plan = load("precise-prefix.yaml")
    fed = {data: [use.reference for use in uses] for data, uses in plan.producers.items()}
    assert fed["prefix-match"] == ["precise-prefix-cache-producer"]
    assert fed["tokens"] == ["token-producer"]
    assert "metrics-data-source" in fed["engine-metrics"]
    assert "prefix-cache-scorer" in plan.consumers["prefix-match"]


def test_the_default_is_a_configuration_like_any_other() -> None:
    plan = default_plan()
    assert list(plan.profiles) == ["decode", "prefill"]
    assert plan.notes == ()
    assert build(plan).handler.name == "disagg-profile-handler"


@pytest.mark.parametrize("name", SHIPPED_NAMES)
def test_a_configuration_that_we_ship_runs_all_that_it_says_without_a_note(name: str) -> None:
    plan = load(name, SHIPPED)
    assert plan.notes == ()
    assert build(plan).profiles.keys() == plan.profiles.keys()
    flags = " --allow-experimental-plugins" if ".alpha." in name else ""
    assert f"epp serve --config-file {name}{flags}\n" in (SHIPPED / name).read_text()


def test_the_default_that_we_ship_is_what_runs_without_a_configuration() -> None:
    ours, default = load("default.yaml", SHIPPED), default_plan()
    assert shape(ours) == shape(default)
    assert _parameters(ours) == _parameters(default)


def test_the_cost_that_we_ship_spells_out_each_default_of_the_scorer() -> None:
    ((use, _),) = load("cost.yaml", SHIPPED).profiles["default"].scorers
    spelled = {one.yaml_name: one.default for one in use.type.parameters}
    assert use.parameters == spelled


def _parameters(plan: Plan) -> dict[str, Any]:
    """Of every plugin that is used."""
    uses = [plan.handler, *plan.deciders.values()]
    for profile in plan.profiles.values():
        uses += [*profile.filters, *(use for use, _ in profile.scorers), profile.picker]
    return {use.reference: (use.type.name, use.parameters) for use in uses}


def test_examples_of_the_documentation_load() -> None:
    examples = re.findall(r"```yaml\n(apiVersion.*?)```", DOCS.read_text(), re.DOTALL)
    assert examples
    for example in examples:
        assert resolve(example.encode(), "example").notes == ()


FIELDS = {
    "dataLayer.peerDiscovery": "{pluginRef: x}",
    "dataLayer.crossReplicaSyncerPluginRef": "x",
    "dataLayer.crossReplicaSyncInterval": "5s",
    "flowControl.maxBytes": "1G",
    "flowControl.maxRequests": "5",
    "flowControl.defaultRequestTTL": "5s",
    "flowControl.noEndpointRequestTTL": "5s",
    "flowControl.priorityBands": "[{priority: 1, maxRequests: 5}]",
    "flowControl.defaultPriorityBand": "{maxBytes: 1G}",
    "flowControl.defaultNegativePriorityBand": "{maxRequests: 5}",
    "flowControl.usageLimitPolicyPluginRef": "x",
    "flowControl.enableEviction": "true",
}
"""Those that are refused or noted, with a value each."""


def _sections(model: type[BaseModel]) -> Iterator[str]:
    """Fields of the document, those of its parts after a dot."""
    for field in model.model_fields.values():
        name = str(field.alias)
        parts = [one for one in _types(field.annotation) if issubclass(one, BaseModel)]
        inner = [name for part in parts for name in part.model_fields if name != "plugin_ref"]
        if not inner:
            yield name
        for part in parts if inner else ():
            yield from (f"{name}.{one.alias}" for one in part.model_fields.values())


def _types(annotation: Any) -> list[type]:
    inner = [one for part in get_args(annotation) for one in _types(part)]
    return [annotation, *inner] if isinstance(annotation, type) else inner


def _verdicts() -> dict[str, str]:
    text = DOCS.read_text().partition("### Every field")[2].partition("###")[0]
    rows = [row.split("|") for row in text.splitlines() if row.startswith("| `")]
    return {name: row[2].strip() for row in rows for name in re.findall(r"`([^`]+)`", row[1])}


def test_the_documentation_says_of_every_field_what_becomes_of_it() -> None:
    verdicts = _verdicts()
    assert set(verdicts) == set(_sections(PickerConfig))
    assert set(verdicts.values()) == {"honoured", "ignored", "noted", "refused"}
    assert {name for name, said in verdicts.items() if said in {"noted", "refused"}} == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_refused_or_noted_as_the_documentation_says(name: str) -> None:
    section, _, field = name.partition(".")
    head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
    text = f"{head}{section}: {{{field}: {FIELDS[name]}}}\n".encode()
    if _verdicts()[name] == "refused":
        with pytest.raises(ConfigError, match=f"'{field}' is not offered here"):
            resolve(text, "here")
    else:
        (note,) = resolve(text, "here").notes
        assert f"'{field}' does nothing" in note


def test_the_documentation_lists_whatever_is_refused_with_its_reason() -> None:
    text = DOCS.read_text()
    for name, instead in elsewhere.REFUSED.items():
        assert any(f"`{name}`" in row and instead in row for row in text.splitlines()), name
