"""The installed plugins, each with the parameters of the example in its own documentation."""

import inspect
from collections.abc import Iterator
from typing import Any

import yaml

from epp.framework.registry import Kind, PluginType, types


def documentation(kind: PluginType) -> str:
    """What it says of itself, and what it derives from; modules may hold several plugins."""
    classes = [one for one in inspect.getmro(kind.factory) if one is not object]
    modules = dict.fromkeys(module for one in classes if (module := inspect.getmodule(one)))
    return "\n".join(one.__doc__ or "" for one in (*classes, *modules))


def example(kind: PluginType) -> dict[str, Any]:
    """Parameters of its example; none where it has no example."""
    _, *parts = documentation(kind).split("```yaml\n")
    for part in parts:
        for entry in yaml.safe_load(part.partition("```")[0]):
            if entry["type"] == kind.name:
                return dict(entry.get("parameters") or {})
    return {}


def installed(*kinds: Kind) -> Iterator[PluginType]:
    """All of these kinds, by name within each."""
    for kind in kinds:
        yield from (found for _, found in sorted(types(kind).items()))


def build(kind: PluginType) -> Any:
    """A fresh one, as its example has it."""
    return kind.build(example(kind))
