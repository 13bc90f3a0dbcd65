"""The upstream definitions of pools and routes, and what an API server holds against an object."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml

from epp.sim.apiserver import schemas
from epp.sim.apiserver.resources import Object, Resource, of_definition


@cache
def definitions() -> tuple[Object, ...]:
    """CustomResourceDefinitions; skips the test where there is no public data."""
    data = os.environ.get("EPP_DATA")
    if not data:
        pytest.skip("EPP_DATA is not set: there are no upstream definitions to compare with")
    files = sorted((Path(data) / "public" / "crds").glob("*.yaml"))
    assert files
    return tuple(yaml.safe_load(file.read_text()) for file in files)


@cache
def kinds() -> dict[tuple[str, str], Resource]:
    """By API version and kind."""
    served = [one for made in definitions() for one in of_definition(made)]
    return {(one.api_version, one.kind): one for one in served}


_RESERVED = frozenset(
    {"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function"}
    | {"if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while"}
)
"""Words of the language: as names of fields, rules write them `__word__`."""


def _escaped(value: Any) -> Any:
    if isinstance(value, list):
        return [_escaped(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        f"__{name}__" if name in _RESERVED else name: _escaped(inner)
        for name, inner in value.items()
    }


@cache
def read_rule(rule: str) -> Any:
    """Raises ValueError where it is no expression."""
    return cel.compile(rule)


def judge(rule: str, value: Any) -> bool:
    """By the Common Expression Language, as the API server has it."""
    return bool(read_rule(rule).execute({"self": _escaped(value)}))


def rules() -> Iterator[str]:
    """Of all definitions, in the Common Expression Language."""
    for one in kinds().values():
        yield from _rules(one.schema)


def _rules(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        said = schema.get("x-kubernetes-validations")
        if isinstance(said, list):
            yield from (rule["rule"] for rule in said)
        for inner in schema.values():
            yield from _rules(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _rules(inner)


def refusals(made: Object) -> list[tuple[str, str]]:
    """Fields and what is wrong with them, unknown ones too. The kind must be defined."""
    schema = kinds()[made["apiVersion"], made["kind"]].schema
    filled = schemas.filled(made, schema)
    unknown = [(path, "unknown field") for path in schemas.pruned(filled, schema)]
    faults = list(schemas.faults(filled, schema))
    return [*unknown, *faults, *schemas.broken_rules(filled, schema, judge)]
