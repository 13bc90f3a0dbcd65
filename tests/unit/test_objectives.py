"""Priorities by objective, and which other name a model gets."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.config.objectives_file import parse_objectives
from epp.request.objectives import NOTHING, LiveObjectives, Objectives, Rewritten

API = "apiVersion: llm-d.ai/v1alpha2, "


class Fixed:
    """A chance that always says the same."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


FIRST = Fixed(0.0)


def declared(*documents: str) -> Objectives:
    whole = "\n---\n".join(f"{{{API}{one}}}" for one in documents)
    return Objectives.of(parse_objectives(whole.encode(), "f", pool="p"))


def rewrite(name: str, *rules: tuple[str, str], created: str = "") -> str:
    """Rules as models that match (comma list) and targets (`model` or `model=weight`)."""
    when = f", creationTimestamp: {created}" if created else ""
    parts: list[str] = []
    for models, targets in rules:
        matches = [f"{{model: {{value: {model}}}}}" for model in models.split(",") if model]
        shares = [
            f"{{modelRewrite: {model}{', weight: ' * bool(weight)}{weight}}}"
            for model, _, weight in (target.partition("=") for target in targets.split(","))
        ]
        parts.append(f"{{matches: [{','.join(matches)}], targets: [{','.join(shares)}]}}")
    spec = f"{{rules: [{','.join(parts)}]}}"
    return f"kind: InferenceModelRewrite, metadata: {{name: {name}{when}}}, spec: {spec}"


@pytest.mark.parametrize(
    ("name", "priority"),
    [("gold", 10), ("batch", -5), ("plain", 0), ("zero", 0), ("unknown", 0), ("", 0)],
)
def test_an_objective_without_a_priority_and_an_unknown_one_have_0(
    name: str, priority: int
) -> None:
    found = declared(
        "kind: InferenceObjective, metadata: {name: gold}, spec: {priority: 10}",
        "kind: InferenceObjective, metadata: {name: batch}, spec: {priority: -5}",
        "kind: InferenceObjective, metadata: {name: zero}, spec: {priority: 0}",
        "kind: InferenceObjective, metadata: {name: plain}",
    )
    assert found.priority(name) == priority
    assert not found.rewrites


OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-01T01:00:01+01:00"


@pytest.mark.parametrize(
    ("documents", "by"),
    [
        ([rewrite("any", ("", "x"), created=OLD), rewrite("m", ("m", "x"), created=NEW)], "m"),
        ([rewrite("new", ("m", "x"), created=NEW), rewrite("old", ("m", "x"), created=OLD)], "old"),
        ([rewrite("new", ("", "x"), created=NEW), rewrite("old", ("", "x"), created=OLD)], "old"),
        ([rewrite("none", ("m", "x")), rewrite("dated", ("m", "x"), created=NEW)], "dated"),
        ([rewrite("b", ("m", "x"), created=OLD), rewrite("a", ("m", "x"), created=OLD)], "b"),
        ([rewrite("b", ("m", "x")), rewrite("a", ("m", "x"))], "b"),
        ([rewrite("other", ("n,o", "x"))], None),
        ([rewrite("several", ("n,m", "x"))], "several"),
        ([], None),
    ],
    ids=[
        "exact before generic, though younger",
        "the older of two exact ones",
        "the older of two generic ones",
        "one with a time before one without",
        "of one age the first in the file",
        "without times the first in the file",
        "no rule fits",
        "any of several models",
        "nothing declared",
    ],
)
def test_the_rule_that_holds(documents: list[str], by: str | None) -> None:
    found = declared(*documents) if documents else NOTHING
    assert found.rewritten("m", FIRST) == (None if by is None else Rewritten(by, "x"))


def test_within_one_rewrite_the_first_rule_holds() -> None:
    found = declared(rewrite("r", ("", "general"), ("m", "first"), ("m", "second"), ("", "late")))
    assert found.rewritten("m", FIRST) == Rewritten("r", "first")
    assert found.rewritten("n", FIRST) == Rewritten("r", "general")


def test_a_request_without_a_model_gets_none() -> None:
    assert declared(rewrite("r", ("", "x"))).rewritten("", FIRST) is None


def test_a_name_is_compared_letter_by_letter() -> None:
    found = declared(rewrite("r", ("m", "x")))
    assert [found.rewritten(name, FIRST) for name in ("M", "m ", "mm")] == [None] * 3


def test_what_a_rule_gives_is_not_looked_up_again() -> None:
    found = declared(rewrite("a", ("m", "n")), rewrite("b", ("n", "m")))
    assert found.rewritten("m", FIRST) == Rewritten("a", "n")


@pytest.mark.parametrize(
    ("targets", "shares"),
    [
        ("a=90,b=10", {"a": 0.9, "b": 0.1}),
        ("a,b,c", {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}),
        ("a=1,b,c=3", {"a": 0.25, "c": 0.75}),
        ("a,b=1", {"b": 1.0}),
        ("a=1000000,b=1", {"a": 1.0, "b": 0.0}),
        ("a", {"a": 1.0}),
    ],
    ids=["weights", "none has one", "a mixed list", "only one has", "extremes", "one target"],
)
def test_targets_share_requests_by_their_weights(targets: str, shares: dict[str, float]) -> None:
    found, chance, draws = declared(rewrite("r", ("m", targets))), Random(3), 20_000
    counts: Counter[str] = Counter()
    for _ in range(draws):
        rewritten = found.rewritten("m", chance)
        assert rewritten is not None
        counts[rewritten.model] += 1
    assert counts.keys() <= shares.keys()
    for model, share in shares.items():
        assert abs(counts[model] / draws - share) < 0.015


@given(
    st.lists(st.integers(1, 1_000_000) | st.none(), min_size=1, max_size=12),
    st.floats(0, 1, exclude_max=True),
)
def test_a_draw_never_leaves_the_list_nor_takes_an_unweighted_one(
    weights: list[int | None], number: float
) -> None:
    targets = ",".join(f"t{n}={'' if w is None else w}" for n, w in enumerate(weights))
    rewritten = declared(rewrite("r", ("m", targets))).rewritten("m", Fixed(number))
    assert rewritten is not None
    chosen = weights[int(rewritten.model[1:])]
    assert chosen is not None or set(weights) == {None}


@pytest.mark.parametrize(("number", "model"), [(0.0, "a"), (0.7499, "a"), (0.75, "b"), (1.0, "b")])
def test_borders_between_shares_are_exact(number: float, model: str) -> None:
    rewritten = declared(rewrite("r", ("m", "a=3,b=1"))).rewritten("m", Fixed(number))
    assert rewritten == Rewritten("r", model)


def test_a_swap_takes_effect_with_the_next_request() -> None:
    live = LiveObjectives(FIRST)
    assert (live.priority("gold"), live.rewritten("m")) == (0, None)
    live.swap(
        declared(
            "kind: InferenceObjective, metadata: {name: gold}, spec: {priority: 1}",
            rewrite("r", ("m", "x")),
        )
    )
    assert (live.priority("gold"), live.rewritten("m")) == (1, Rewritten("r", "x"))
    assert live.current.rewrites
