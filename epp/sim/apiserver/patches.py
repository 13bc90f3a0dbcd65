"""Patches: merge (also for server-side apply, without owners), JSON, strategic merge."""

import copy
from typing import Any

from .failures import Failure, bad
from .resources import Object

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def patched(found: Object, patch: Any, kind: str, *, custom: bool) -> Any:
    """`found` as `patch` wants it. Raises Failure: 415 for kinds that do not fit."""
    if kind == JSON:
        return _json(copy.deepcopy(found), patch)
    if kind in {MERGE, APPLY}:
        return merged(found, patch)
    if kind == STRATEGIC and not custom:
        return _strategic(found, patch)
    raise Failure(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        f"{JSON}, {MERGE}, {APPLY}",
    )


def merged(found: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(found) if isinstance(found, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _strategic(found: Any, patch: Any) -> Any:
    """Maps are merged; lists of objects with names or types are merged by those."""
    if isinstance(patch, list):
        key = _merge_key(found, patch)
        return patch if key is None else _lists(found, patch, key)
    if not isinstance(patch, dict):
        return patch
    result = dict(found) if isinstance(found, dict) else {}
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _strategic(result.get(key), value)
    return result


def _merge_key(found: Any, patch: list[Any]) -> str | None:
    listed = [*(found if isinstance(found, list) else []), *patch]
    for key in ("name", "type", "ip", "port"):
        if listed and all(isinstance(one, dict) and key in one for one in listed):
            return key
    return None


def _lists(found: Any, patch: list[Any], key: str) -> list[Any]:
    by_key = {one[key]: one for one in found or ()}
    for one in patch:
        if one.get("$patch") == "delete":
            by_key.pop(one[key], None)
        else:
            by_key[one[key]] = _strategic(by_key.get(one[key]), one)
    return list(by_key.values())


def _json(result: Any, operations: Any) -> Any:
    """RFC 6902, without `move` and `copy`."""
    for one in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:]]
        at = result
        try:
            for part in parts[:-1]:
                at = at[int(part)] if isinstance(at, list) else at[part]
            _operate(at, parts[-1], one)
        except (KeyError, IndexError, ValueError, TypeError):
            path = one["path"]
            raise Failure(422, "Invalid", f"cannot {one['op']} at {path!r}") from None
    return result


def _operate(at: Any, last: str, one: Object) -> None:
    key: Any = last if isinstance(at, dict) or last == "-" else int(last)
    match one["op"]:
        case "add" if isinstance(at, list):
            at.insert(len(at) if key == "-" else key, one["value"])
        case "add":
            at[key] = one["value"]
        case "replace":
            if isinstance(at, dict) and key not in at:
                raise KeyError
            at[key] = one["value"]
        case "remove":
            del at[key]
        case "test":
            if at[key] != one["value"]:
                raise ValueError
        case other:
            raise bad(f"unknown operation {other!r}")
