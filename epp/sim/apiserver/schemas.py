"""What a CRD's structural schema does to an object: defaults, pruning, and what it refuses."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Judge = Callable[[str, Any], bool]
"""Whether a value (`self`) keeps a rule in the Common Expression Language."""

_KINDS: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


def filled(value: Any, schema: Mapping[str, Any]) -> Any:
    """With the defaults of what is missing."""
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name, inner in known.items():
            if name not in value and "default" in inner:
                value[name] = inner["default"]
        for name, inner in value.items():
            value[name] = filled(inner, known.get(name) or _rest(schema))
    elif isinstance(value, list):
        return [filled(one, schema.get("items", {})) for one in value]
    return value


def pruned(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Take out what the schema does not know; gives the paths."""
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from pruned(one, schema.get("items", {}), f"{path}[{number}]")
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = schema.get("properties")
    for name in list(value):
        at = f"{path}.{name}" if path else name
        if known is not None and name not in known and not _rest(schema):
            if path or name not in {"apiVersion", "kind", "metadata"}:
                del value[name]
                yield at
        elif path or name != "metadata":
            yield from pruned(value[name], (known or {}).get(name) or _rest(schema), at)


def faults(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Fields that break the schema, and how."""
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        kind = None
    if value is None and schema.get("nullable"):
        return
    is_kind = kind is None or isinstance(value, _KINDS[kind])
    if not is_kind or (kind in {"integer", "number"} and isinstance(value, bool)):
        yield path, f"must be of type {kind}"
        return
    for word, broken in (
        ("enum", lambda limit: value not in limit),
        ("minimum", lambda limit: value < limit),
        ("maximum", lambda limit: value > limit),
        ("minLength", lambda limit: len(value) < limit),
        ("maxLength", lambda limit: len(value) > limit),
        ("minItems", lambda limit: len(value) < limit),
        ("maxItems", lambda limit: len(value) > limit),
        ("minProperties", lambda limit: len(value) < limit),
        ("maxProperties", lambda limit: len(value) > limit),
        ("pattern", lambda limit: not re.search(limit, value)),
    ):
        if word in schema and broken(schema[word]):
            yield path, f"breaks {word} {schema[word]}"
    if isinstance(value, dict):
        yield from _of_object(value, schema, path)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from faults(one, schema.get("items", {}), f"{path}[{number}]")


def _of_object(
    value: dict[str, Any], schema: Mapping[str, Any], path: str
) -> Iterator[tuple[str, str]]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}" if path else name, "Required value"
    known = schema.get("properties", {})
    for name, inner in value.items():
        at = f"{path}.{name}" if path else name
        if path or name not in {"apiVersion", "kind", "metadata"}:
            yield from faults(inner, known.get(name) or _rest(schema), at)


def broken_rules(
    value: Any, schema: Mapping[str, Any], judge: Judge, path: str = ""
) -> Iterator[tuple[str, str]]:
    """Fields that break a rule of `x-kubernetes-validations`, and what it says. Rules about a
    change (`oldSelf`) do not hold for an object as such and are left out."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"] and not judge(rule["rule"], value):
            yield path, rule.get("message", rule["rule"])
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name, inner in value.items():
            at = f"{path}.{name}" if path else name
            yield from broken_rules(inner, known.get(name) or _rest(schema), judge, at)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from broken_rules(one, schema.get("items", {}), judge, f"{path}[{number}]")


def _rest(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    more = schema.get("additionalProperties")
    return more if isinstance(more, dict) else {}
