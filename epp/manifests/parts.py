"""Which of the shipped files a kustomization needs: those that it names, and all that they name."""

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from epp.errors import ConfigError

Tree = Mapping[str, bytes]
"""Files by their paths below one folder, with slashes."""
KUSTOMIZATION = "kustomization.yaml"
_NAMED = ("resources", "components")


def needed(tree: Tree, folders: tuple[str, ...]) -> dict[str, bytes]:
    """The files of these folders, and of every folder that their kustomizations lead to.

    A folder comes whole, but for folders in it that nothing names; a URL stays one. Raises
    ConfigError for a folder without a kustomization, and for a name of nothing.
    """
    found: dict[str, bytes] = {}
    waiting, seen = list(folders), set[str]()
    while waiting:
        folder = waiting.pop()
        if folder in seen:
            continue
        seen.add(folder)
        text = tree.get(f"{folder}/{KUSTOMIZATION}")
        if text is None:
            raise ConfigError(folder, f"has no {KUSTOMIZATION}")
        for name in _names(text):
            place = posixpath.normpath(f"{folder}/{name}")
            if place not in tree and "://" not in name:
                waiting.append(place)
        found |= {path: data for path, data in tree.items() if _of(path, folder, tree)}
    return found


def _names(text: bytes) -> Iterator[str]:
    said: Any = yaml.safe_load(text)
    for word in _NAMED:
        yield from said.get(word, ())


def _of(path: str, folder: str, tree: Tree) -> bool:
    """Whether a file belongs to a folder, and to no kustomization further down."""
    if not path.startswith(folder + "/"):
        return False
    between = posixpath.dirname(path)
    while between != folder:
        if f"{between}/{KUSTOMIZATION}" in tree:
            return False
        between = posixpath.dirname(between)
    return True
