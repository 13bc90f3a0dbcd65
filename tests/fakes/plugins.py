"""Plugins of third parties, as if their packages were installed."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from epp.framework import registry
from epp.framework.registry import Kind

Install = Callable[[Kind, str, Any], None]


@dataclass(frozen=True)
class Entry:
    """What the registry needs of an entry point."""

    name: str
    factory: Any
    dist: None = None

    def load(self) -> Any:
        if isinstance(self.factory, Exception):
            raise self.factory
        return self.factory


def install(patch: pytest.MonkeyPatch) -> Install:
    """A function that adds a plugin to the installed ones until `patch` is undone."""
    installed = {kind: dict[str, Any](registry._entries(kind)) for kind in Kind}

    def entries(kind: Kind) -> dict[str, EntryPoint]:
        return installed[kind]

    def add(kind: Kind, name: str, factory: Any) -> None:
        """A `factory` that is an exception is a module that cannot be imported."""
        installed[kind][name] = Entry(name, factory)

    patch.setattr(registry, "_entries", entries)
    return add
