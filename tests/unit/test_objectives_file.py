"""The objectives file: what operators declare, and where a fault of it stands."""

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config.objectives_file import MAX_OBJECTS, Declared, parse_objectives
from epp.errors import ConfigError

API = "llm-d.ai/v1alpha2"


def text(kind: str, name: str, spec: str = "", *, api: str = API, metadata: str = "") -> str:
    """One object in flow style, on one line."""
    inner = f"{{name: {name}{metadata}}}"
    said = f", spec: {spec}" if spec else ""
    return f"{{apiVersion: {api}, kind: {kind}, metadata: {inner}{said}}}"


def objective(name: str, spec: str = "", **more: str) -> str:
    return text("InferenceObjective", name, spec, **more)


def rewrite(name: str, spec: str = "{rules: []}", **more: str) -> str:
    return text("InferenceModelRewrite", name, spec, **more)


def parsed(*documents: str, pool: str = "llama") -> tuple[Declared, list[str]]:
    warnings: list[str] = []
    whole = "\n---\n".join(documents).encode()
    return parse_objectives(whole, "f", pool=pool, warn=warnings.append), warnings


def test_a_file_of_several_documents_is_read_in_its_order() -> None:
    found, warnings = parsed(
        objective("gold", "{poolRef: {name: llama}, priority: 10}"),
        rewrite("b"),
        objective("batch", "{priority: -1}", api="inference.networking.x-k8s.io/v1alpha2"),
        rewrite("a"),
        "# nothing in this one",
    )
    assert [(one.metadata.name, one.spec.priority) for one in found.objectives] == [
        ("gold", 10),
        ("batch", -1),
    ]
    assert [one.metadata.name for one in found.rewrites] == ["b", "a"]
    assert warnings == []


def test_a_list_as_kubectl_writes_it_is_read_like_documents() -> None:
    """With what Kubernetes adds to each object, and a time as YAML would read one."""
    found, _ = parsed(
        """
apiVersion: v1
kind: List
metadata: {resourceVersion: ""}
items:
- apiVersion: llm-d.ai/v1alpha2
  kind: InferenceObjective
  metadata:
    name: gold
    namespace: prod
    uid: 1a2b
    generation: 1
    creationTimestamp: 2026-01-31T12:00:00Z
    annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
  spec: {poolRef: {group: llm-d.ai, kind: InferencePool, name: llama}, priority: 3}
  status: {conditions: [{type: Accepted, status: "True"}]}
- apiVersion: llm-d.ai/v1alpha2
  kind: InferenceModelRewrite
  metadata: {name: canary, creationTimestamp: "2026-01-31T13:00:00+01:00"}
  spec:
    poolRef: {name: llama}
    rules:
    - matches: [{model: {type: Exact, value: m}}, {model: {value: n}}]
      targets: [{modelRewrite: a, weight: 1000000}, {modelRewrite: b, weight: 1}]
    - targets: [{modelRewrite: c}]
"""
    )
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert found.objectives[0].metadata.creationTimestamp == noon
    assert found.rewrites[0].metadata.creationTimestamp == noon
    first, second = found.rewrites[0].spec.rules
    assert [match.model.value for match in first.matches] == ["m", "n"]
    assert [(one.modelRewrite, one.weight) for one in first.targets] == [("a", 1000000), ("b", 1)]
    assert (second.matches, second.targets[0].weight) == ([], None)


@pytest.mark.parametrize("kind", ["List", "InferenceObjectiveList", "InferenceModelRewriteList"])
def test_an_empty_list_declares_nothing(kind: str) -> None:
    assert parsed(f"{{apiVersion: v1, kind: {kind}, items: []}}")[0] == Declared()


@pytest.mark.parametrize("pool", ["llama", "prod/llama"])
def test_what_belongs_to_another_pool_is_left_out_and_told(pool: str) -> None:
    found, warnings = parsed(
        objective("ours", "{poolRef: {name: llama}}"),
        objective("anybodys"),
        objective("theirs", "{poolRef: {name: other}}"),
        pool=pool,
    )
    assert [one.metadata.name for one in found.objectives] == ["ours", "anybodys"]
    assert warnings == ["f:5:1 InferenceObjective 'theirs' belongs to another pool: left out"]


def test_targets_that_can_never_be_chosen_are_told() -> None:
    _, warnings = parsed(
        rewrite("r", "{rules: [{targets: [{modelRewrite: a, weight: 1}, {modelRewrite: b}]}]}")
    )
    assert len(warnings) == 1
    assert warnings[0].startswith("f:1:")
    assert "never chosen" in warnings[0]


RULES = "{rules: [{targets: [%s]}]}"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("", "f:1:1 is empty"),
        ("# only a comment", "f:1:1 is empty"),
        ("5", "f:1:1 must be a mapping"),
        ("[1]", "f:1:1 must be a mapping"),
        ("{apiVersion: v1}", "f:1:1 'kind' is missing"),
        ("{kind: [1]}", "f:1:2 unknown kind"),
        ("kind: InferenceObjectives", "did you mean 'InferenceObjective'?"),
        ("kind: List", "f:1:1 a list needs `items`"),
        ("{kind: List, items: [5]}", "f:1:22 must be a mapping"),
        ("{kind: List, items: 5}", "f:1:14 a list needs `items`"),
        (objective("a", api="v1"), "f:1:2 'apiVersion': input should be 'llm-d.ai/v1alpha2' or"),
        ("{kind: InferenceObjective, metadata: {name: a}}", "f:1:1 'apiVersion' is missing"),
        (f"{{apiVersion: {API}, kind: InferenceObjective}}", "'metadata' is missing"),
        (objective("A_b"), "'name': expected at most 253 of a-z"),
        (objective("a", "{priority: high}"), "'priority': input should be a valid integer"),
        (objective("a", "{priority: true}"), "'priority': input should be a valid integer"),
        (objective("a", "{priority: 2147483648}"), "got 2147483648"),
        (objective("a", "{prioirty: 1}"), "unknown field 'prioirty'; did you mean 'priority'?"),
        (objective("a", metadata=", creationTimestamp: soon"), "must be a time such as"),
        (objective("a", metadata=", creationTimestamp: 2026-01-31"), "must be a time such as"),
        (objective("a", metadata=", creationTimestamp: 5"), "must be a time such as"),
        (rewrite("a", "{}"), "'rules' is missing"),
        (rewrite("a", ""), "'spec' is missing"),
        (rewrite("a", "{rules: [{}]}"), "'targets' is missing"),
        (rewrite("a", RULES % ""), "'targets': list should have at least 1 item"),
        (rewrite("a", RULES % "{weight: 1}"), "'modelRewrite' is missing"),
        (rewrite("a", RULES % "{modelRewrite: ''}"), "'modelRewrite': string should have at least"),
        (rewrite("a", RULES % "{modelRewrite: m, weight: 0}"), "greater than or equal to 1, got 0"),
        (rewrite("a", RULES % "{modelRewrite: m, weight: 1000001}"), "got 1000001"),
        (rewrite("a", RULES % "{modelRewrite: m, weight: .nan}"), "'weight': input should be"),
        (
            rewrite("a", "{rules: [{matches: [{model: {type: Prefix, value: x}}], targets: []}]}"),
            "'type': input should be 'Exact', got 'Prefix'",
        ),
        (rewrite("a", "{rules: [{matches: [{}], targets: []}]}"), "'model' is missing"),
        (f"{objective('a')}\n---\n{objective('a')}", "f:3:70 has the name of the InferenceObj"),
        ("a: [", "f:2:1 is neither YAML nor JSON"),
        (f"{objective('a')}\n---\n\tb: c", "f:3:1 is neither YAML nor JSON"),
    ],
)
def test_a_fault_is_told_with_its_place(document: str, says: str) -> None:
    with pytest.raises(ConfigError) as fault:
        parsed(document)
    assert says in str(fault.value)
    assert str(fault.value).startswith("f:")


def test_every_fault_of_an_object_is_told_at_once_from_within_a_list() -> None:
    with pytest.raises(ConfigError) as fault:
        parsed(f"kind: List\nitems:\n- {objective('a', '{priority: x, poolRef: {}}')}")
    told = str(fault.value).splitlines()
    assert [line[:4] for line in told] == ["f:3:"] * 2
    assert "'name' is missing" in told[0]
    assert "'priority'" in told[1]


def test_the_example_in_the_documentation_means_what_it_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text()
    example = page.partition("```yaml\n# objectives.yaml\n")[2].partition("```")[0]
    found, warnings = parsed(example)
    assert [(one.metadata.name, one.spec.priority) for one in found.objectives] == [("batch", -1)]
    assert [target.weight for target in found.rewrites[0].spec.rules[0].targets] == [90, 10]
    assert warnings == []


def test_one_name_may_stand_for_an_objective_and_for_a_rewrite() -> None:
    found, _ = parsed(objective("a"), rewrite("a"))
    assert (len(found.objectives), len(found.rewrites)) == (1, 1)


def test_a_time_that_generators_leave_empty_is_none() -> None:
    found, _ = parsed(objective("a", metadata=", creationTimestamp: null"))
    assert found.objectives[0].metadata.creationTimestamp is None


def test_the_number_of_objects_is_bounded() -> None:
    many = [objective(f"o{number}") for number in range(MAX_OBJECTS)]
    assert len(parsed(*many)[0].objectives) == MAX_OBJECTS
    with pytest.raises(ConfigError, match="one more than the 4096"):
        parsed(*many, objective("last"))


SAMPLES = (
    objective("gold", "{poolRef: {name: llama}, priority: 10}"),
    rewrite("r", "{rules: [{matches: [{model: {value: m}}], targets: [{modelRewrite: a}]}]}"),
    "kind: List\nitems:\n- {}\n",
)
ODD = [b"", b"{", b"]", b":", b"-", b"\n", b"*x", b"&x", b"!!binary ", b"null", b"\x00", b"\xff"]


@given(st.sampled_from(SAMPLES), st.randoms(use_true_random=False), st.integers(1, 6))
def test_any_damaged_file_loads_or_gives_a_located_fault(
    sample: str, chance: random.Random, cuts: int
) -> None:
    damaged = bytearray(sample.encode())
    for _ in range(cuts):
        at = chance.randrange(len(damaged))
        damaged[at : at + chance.randrange(3)] = chance.choice(ODD)
    fault: ConfigError | None = None
    try:
        parse_objectives(bytes(damaged), "f", pool="llama")
    except ConfigError as found:
        fault = found
    assert fault is None or fault.where.startswith("f:")
