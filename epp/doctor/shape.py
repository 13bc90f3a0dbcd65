"""Parts of objects that others wrote: what is not there, or is of another shape, is empty. Pure."""

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]


def at(found: Any, *path: str | int) -> Any:
    """What stands there; None for nothing."""
    for step in path:
        if isinstance(step, int):
            inside = isinstance(found, list) and -len(found) <= step < len(found)
        else:
            inside = isinstance(found, Mapping) and step in found
        if not inside:
            return None
        found = found[step]
    return found


def table(found: Any, *path: str | int) -> dict[str, Any]:
    there = at(found, *path)
    return dict(there) if isinstance(there, Mapping) else {}


def rows(found: Any, *path: str | int) -> list[dict[str, Any]]:
    """The objects of a list."""
    there = at(found, *path)
    return [dict(one) for one in there if isinstance(one, Mapping)] if _list(there) else []


def texts(found: Any, *path: str | int) -> list[str]:
    """The scalars of a list, as text."""
    there = at(found, *path)
    return [str(one) for one in there if isinstance(one, str | int)] if _list(there) else []


def text(found: Any, *path: str | int) -> str:
    there = at(found, *path)
    return str(there) if isinstance(there, str | int) else ""


def labels(found: Any, *path: str | int) -> dict[str, str]:
    """Names and values of text."""
    return {name: value for name, value in table(found, *path).items() if isinstance(value, str)}


def _list(there: Any) -> bool:
    return isinstance(there, list)
