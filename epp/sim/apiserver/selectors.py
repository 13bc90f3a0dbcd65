"""Label and field selectors, as queries have them."""

import re
from collections.abc import Callable, Mapping

from .failures import bad
from .resources import Object

Labels = Mapping[str, str]
Test = Callable[[Labels], bool]

_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")


def by_labels(text: str) -> Test:
    """What `labelSelector` asks for. Raises Failure for what it does not understand."""
    tests = [_term(term) for term in re.split(r",\s*(?![^(]*\))", text) if term.strip()]
    return lambda labels: all(test(labels) for test in tests)


def _term(term: str) -> Test:
    term = term.strip()
    if found := _SET.match(term):
        key, operator, listed = found[1], found[2], {one.strip() for one in found[3].split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in listed
        return lambda labels: labels.get(key) not in listed
    for sign in ("!=", "==", "="):
        key, found_sign, value = term.partition(sign)
        if found_sign:
            key, value = key.strip(), value.strip()
            if sign == "!=":
                return lambda labels: labels.get(key) != value
            return lambda labels: labels.get(key) == value
    if term.startswith("!"):
        return lambda labels: term[1:].strip() not in labels
    if " " in term:
        raise bad(f"unable to parse requirement: {term!r}")
    return lambda labels: term in labels


def by_fields(text: str) -> Callable[[Object], bool]:
    """What `fieldSelector` asks for: equality of paths such as `metadata.name`."""
    wanted: list[tuple[list[str], str]] = []
    for term in filter(None, text.split(",")):
        path, sign, value = term.partition("=")
        if not sign:
            raise bad(f"invalid field selector: {term!r}")
        wanted.append((path.split("."), value.removeprefix("=")))

    def matches(found: Object) -> bool:
        for path, value in wanted:
            at: object = found
            for part in path:
                at = at.get(part) if isinstance(at, dict) else None
            if str(at or "") != value:
                return False
        return True

    return matches
