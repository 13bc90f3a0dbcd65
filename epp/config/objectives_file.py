"""The objectives file: InferenceObjective and InferenceModelRewrite, as Kubernetes has them. Pure.

    apiVersion: llm-d.ai/v1alpha2
    kind: InferenceObjective
    metadata: {name: batch}
    spec: {poolRef: {name: llama}, priority: -1}
    ---
    apiVersion: llm-d.ai/v1alpha2
    kind: InferenceModelRewrite
    metadata: {name: canary}
    spec:
      poolRef: {name: llama}
      rules:
        - matches: [{model: {value: llama}}]
          targets: [{modelRewrite: llama-1, weight: 90}, {modelRewrite: llama-2, weight: 10}]

Several documents, and lists as `kubectl get -o yaml` writes them, are read alike. What Kubernetes
keeps beside these fields (`status`, other metadata) is let pass; every other fault is a ConfigError
with `file:line:column` and what to do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from epp.errors import ConfigError

from . import located
from .located import Located, Location
from .values import matching

MAX_OBJECTS = 4096
"""Objectives and rewrites of one file."""
LEAST_PRIORITY, MOST_PRIORITY = -(2**31), 2**31 - 1
MOST_WEIGHT = 1_000_000

ApiVersion = Literal["llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2"]
Name = Annotated[
    str,
    matching(
        r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?",
        "at most 253 of a-z, 0-9, '.' and '-', the first and the last a letter or digit",
    ),
]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=256)]

OBJECTIVE, REWRITE = "InferenceObjective", "InferenceModelRewrite"

Warn = Callable[[str], None]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Metadata(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: Name
    namespace: Name | None = None
    """Only told: a file belongs to one picker, whatever its namespace is called."""
    creationTimestamp: datetime | None = None  # noqa: N815 - the name in the file format
    """Of two rewrites that fit a model alike the older one holds; without a time it is younger
    than all that have one."""

    @field_validator("creationTimestamp", mode="before")
    @classmethod
    def _is_a_time(cls, value: Any) -> Any:
        if value is None:
            return None
        try:
            when = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            when = None
        if when is None or when.tzinfo is None:
            raise ValueError("must be a time such as 2026-01-31T12:00:00Z")
        return when


class PoolRef(_Strict):
    group: str = ""
    kind: str = "InferencePool"
    name: Name


class ObjectiveSpec(_Strict):
    poolRef: PoolRef | None = None  # noqa: N815 - the name in the file format
    priority: int | None = Field(None, strict=True, ge=LEAST_PRIORITY, le=MOST_PRIORITY)
    """Unset is 0. Requests below 0 may be shed."""


class ModelMatch(_Strict):
    type: Literal["Exact"] = "Exact"
    value: ModelName


class Match(_Strict):
    model: ModelMatch


class Target(_Strict):
    modelRewrite: ModelName  # noqa: N815 - the name in the file format
    weight: int | None = Field(None, strict=True, ge=1, le=MOST_WEIGHT)


class Rule(_Strict):
    matches: list[Match] = Field(default_factory=list[Match])
    """Any of them; without one the rule fits every model."""
    targets: list[Target] = Field(min_length=1)


class RewriteSpec(_Strict):
    poolRef: PoolRef | None = None  # noqa: N815 - the name in the file format
    rules: list[Rule]


class Objective(_Strict):
    apiVersion: ApiVersion  # noqa: N815 - the name in the file format
    kind: Literal["InferenceObjective"]
    metadata: Metadata
    spec: ObjectiveSpec = ObjectiveSpec(poolRef=None, priority=None)
    status: Any = None


class ModelRewrite(_Strict):
    apiVersion: ApiVersion  # noqa: N815 - the name in the file format
    kind: Literal["InferenceModelRewrite"]
    metadata: Metadata
    spec: RewriteSpec
    status: Any = None


@dataclass(frozen=True, slots=True)
class Declared:
    """What one good file says of a pool, in its order; no name stands twice."""

    objectives: tuple[Objective, ...] = ()
    rewrites: tuple[ModelRewrite, ...] = ()


_KINDS: dict[str, type[Objective] | type[ModelRewrite]] = {
    OBJECTIVE: Objective,
    REWRITE: ModelRewrite,
}
_LISTS = {"List", f"{OBJECTIVE}List", f"{REWRITE}List"}


def parse_objectives(
    text: bytes, where: str, *, pool: str, warn: Warn = lambda _: None
) -> Declared:
    """Read a file's text; `where` names it in errors. Raises ConfigError.

    What belongs to another pool than `pool` is left out, and `warn` gets a sentence about it and
    about targets that can never be chosen.
    """
    seen: dict[tuple[str, str], str] = {}
    objectives: list[Objective] = []
    rewrites: list[ModelRewrite] = []
    empty = True
    for document in located.documents(text, where):
        empty = False
        for path in _objects(document):
            found = _object(document, path)
            name = (found.kind, found.metadata.name)
            if name in seen:
                at = (*path, "metadata", "name")
                raise document.fault(at, f"has the name of the {found.kind} at {seen[name]}")
            if len(seen) == MAX_OBJECTS:
                raise document.fault(path, f"is one more than the {MAX_OBJECTS} that are read")
            seen[name] = document.at(path)
            if not _is_ours(found, pool):
                warn(f"{seen[name]} {found.kind} {name[1]!r} belongs to another pool: left out")
            elif isinstance(found, Objective):
                objectives.append(found)
            else:
                rewrites.append(found)
                _look_at_weights(document, path, found, warn)
    if empty:
        raise ConfigError(
            f"{where}:1:1", "is empty; to declare nothing write `kind: List` and `items: []`"
        )
    return Declared(tuple(objectives), tuple(rewrites))


def _objects(document: Located) -> Iterator[Location]:
    """Where objects stand in a document."""
    value = document.value
    if not isinstance(value, dict):
        raise document.fault((), "must be a mapping with `kind`, or a list of `kind: List`")
    if str(value.get("kind")) not in _LISTS:
        yield ()
        return
    items = value.get("items")
    if not isinstance(items, list):
        raise document.fault(("items",), "a list needs `items`, a sequence")
    yield from (("items", number) for number in range(len(items)))


def _object(document: Located, path: Location) -> Objective | ModelRewrite:
    value = document.value
    for part in path:
        value = value[part]
    if not isinstance(value, dict):
        raise document.fault(path, "must be a mapping")
    kind = value.get("kind")
    if kind is None:
        raise document.fault(path, f"'kind' is missing: {OBJECTIVE} or {REWRITE}")
    model = _KINDS.get(str(kind))
    if model is None:
        raise document.fault((*path, "kind"), located.unknown("kind", str(kind), [*_KINDS]))
    return located.checked(model, document, path)


def _is_ours(found: Objective | ModelRewrite, pool: str) -> bool:
    """Without a poolRef whatever stands in this picker's file is for its pool."""
    named = found.spec.poolRef
    return named is None or named.name in {pool, pool.rpartition("/")[2]}


def _look_at_weights(document: Located, path: Location, found: ModelRewrite, warn: Warn) -> None:
    for number, rule in enumerate(found.spec.rules):
        weighted = [target for target in rule.targets if target.weight is not None]
        if 0 < len(weighted) < len(rule.targets):
            at = document.at((*path, "spec", "rules", number, "targets"))
            warn(f"{at} targets without a weight are never chosen beside those that have one")
