"""Objectives and rewrites as short words of a test."""

from collections.abc import Mapping, Sequence

from epp.config.objectives_file import parse_objectives
from epp.request.objectives import Objectives

_API = "apiVersion: llm-d.ai/v1alpha2, "
Rules = Sequence[tuple[str, str]]


def declared(
    priorities: Mapping[str, int] | None = None, rewrites: Mapping[str, Rules] | None = None
) -> Objectives:
    """`rewrites`: by name, rules as models that match (comma list, empty: all) and targets (comma
    list of `model` or `model=weight`)."""
    documents = ["{kind: List, items: []}"]
    for name, priority in (priorities or {}).items():
        spec = f"metadata: {{name: {name}}}, spec: {{priority: {priority}}}"
        documents.append(f"{{{_API}kind: InferenceObjective, {spec}}}")
    for name, rules in (rewrites or {}).items():
        spec = ", ".join(
            f"{{matches: [{_matches(m)}], targets: [{_targets(t)}]}}" for m, t in rules
        )
        head = f"{_API}kind: InferenceModelRewrite, metadata: {{name: {name}}}"
        documents.append(f"{{{head}, spec: {{rules: [{spec}]}}}}")
    return Objectives.of(parse_objectives("\n---\n".join(documents).encode(), "f", pool="p"))


def _matches(models: str) -> str:
    return ", ".join(f"{{model: {{value: {model}}}}}" for model in models.split(",") if model)


def _targets(targets: str) -> str:
    parts = (target.partition("=") for target in targets.split(","))
    return ", ".join(
        f"{{modelRewrite: {model}{', weight: ' * bool(weight)}{weight}}}"
        for model, _, weight in parts
    )
