"""Any text either loads, builds and can be told, or is a fault with its place. No traceback."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.errors import ConfigError
from epp.framework import registry
from epp.framework.registry import Kind
from epp.request.plan import elsewhere, report
from epp.request.plan.entries import Options
from epp.request.plan.live import build
from epp.request.plan.resolve import resolve

SAMPLES = Path(__file__).parents[1] / "data" / "picker_configs"
TEXTS = [path.read_bytes() for path in sorted(SAMPLES.glob("*.yaml"))]
LOADS_OR_PLACE = re.compile(r"loads|f:[1-9]\d*:[1-9]\d*")
ALPHA = Options(allow_experimental=True)

TYPES = sorted(
    {name for kind in Kind for name in registry.names(kind)}
    | elsewhere.PARSERS
    | elsewhere.NOTHING_TO_DO.keys()
)
PARAMETERS = {
    name: [parameter.yaml_name for parameter in each.parameters]
    for kind in Kind
    for name, each in registry.types(kind).items()
}
INNER = ["prefill", "decode", "type", "threshold", "value", "blockSize", "url", "key", "operator"]
NAMES = ["a", "b", "decode", "prefill", "default", *TYPES]

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(NAMES),
)
values = st.recursive(
    odd,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(INNER), st.text(max_size=6)), inner),
    ),
    max_leaves=6,
)
names = st.sampled_from(NAMES)


def plugin(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    known = PARAMETERS.get(kind) or ["none"]
    given = st.dictionaries(st.sampled_from(known), values, max_size=2)
    return st.fixed_dictionaries(
        {"type": st.just(kind)}, optional={"name": names, "parameters": given}
    )


plugins = st.sampled_from(TYPES).flatmap(plugin)
references = st.fixed_dictionaries({"pluginRef": names}, optional={"weight": odd})
profiles = st.fixed_dictionaries(
    {"name": names}, optional={"plugins": st.lists(references, max_size=5)}
)
sources = st.fixed_dictionaries(
    {"pluginRef": names}, optional={"extractors": st.lists(references, max_size=2)}
)
layers = st.fixed_dictionaries(
    {}, optional={"injectDefaults": st.booleans(), "sources": st.lists(sources, max_size=2)}
)
documents = st.fixed_dictionaries(
    {
        "apiVersion": st.just("llm-d.ai/v1alpha1"),
        "kind": st.just("EndpointPickerConfig"),
        "plugins": st.lists(plugins, max_size=6),
    },
    optional={
        "schedulingProfiles": st.lists(profiles, max_size=3),
        "featureGates": st.lists(st.sampled_from(["flowControl=false", "flowControl", "x"])),
        "requestHandler": st.fixed_dictionaries({"parsers": st.lists(references, max_size=2)}),
        "dataLayer": st.one_of(values, layers),
        "metadata": values,
    },
)


def outcome(text: bytes) -> str:
    """`loads`, or the place of the fault."""
    try:
        plan = resolve(text, "f", ALPHA)
    except ConfigError as error:
        fault = error
    else:
        build(plan)
        report.text(plan)
        json.dumps(report.document(plan), allow_nan=False)
        return "loads"
    assert len(str(fault)) < 10_000
    return fault.where


def harmless(value: Any) -> Any:
    """Without what a YAML writer cannot write."""
    return json.loads(json.dumps(value).encode("utf-8", "replace"))


@settings(max_examples=300, deadline=None)
@given(documents)
def test_any_document_of_known_words_loads_or_has_a_place(document: dict[str, Any]) -> None:
    text = yaml.safe_dump(harmless(document), allow_unicode=True).encode()
    assert LOADS_OR_PLACE.fullmatch(outcome(text))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(TEXTS), st.integers(0, 2**16), st.integers(0, 40), st.binary(max_size=12))
def test_any_damage_to_a_sample_loads_or_has_a_place(
    text: bytes, at: int, gone: int, put: bytes
) -> None:
    at %= len(text) + 1
    assert LOADS_OR_PLACE.fullmatch(outcome(text[:at] + put + text[at + gone :]))


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
@example(b"&a {<<: *a}")
@example(b"&a [*a]")
@example(b"{? {a: b} : c}")
@example(b"a: !!timestamp x")
@example(b"a: !!binary '-'")
@example(b"[" * 5000)
@example(b"\xff\xfe\x00")
@example(b"a: 1e999999\nb: " + b"9" * 5000)
@example(b"a: &x [1]\n" + b"".join(b"b%d: [*x, *x, *x]\n" % n for n in range(200)))
def test_any_text_at_all_loads_or_has_a_place(text: bytes) -> None:
    assert LOADS_OR_PLACE.fullmatch(outcome(text))


def test_samples_load() -> None:
    assert {outcome(text) for text in TEXTS} == {"loads"}
