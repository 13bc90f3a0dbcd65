"""One tier of an engine's cache (GPU, CPU, DISK, ...): its groups, and which own keys it holds.

Where an engine has several groups of full attention, a key needs all of them that this tier has, as
a hit does in the engine.
"""

from .engine_tree import Tree
from .events import Hash

MAX_GROUPS = 16
"""Groups of full attention in one tier; further ones are ignored."""


class Tier:
    """The trees of one tier, and which keys came or went since `take`."""

    __slots__ = ("_own_bytes", "_touched", "held", "trees")

    def __init__(self, own_bytes: int) -> None:
        self._own_bytes = own_bytes
        self._touched: dict[int, bool] = {}
        """Keys that may have changed: whether they were present before."""
        self.trees: dict[int, Tree] = {}
        self.held = 0
        """Engine blocks, of all groups."""

    def tree(self, group: int) -> Tree | None:
        """The tree of a group, planted where it is new; None beyond MAX_GROUPS."""
        tree = self.trees.get(group)
        if tree is not None or len(self.trees) >= MAX_GROUPS:
            return tree
        for key in self.present():  # a new group holds none of them yet
            self._before_flip(key)
        tree = self.trees[group] = Tree(self._own_bytes, self._before_flip)
        return tree

    def remove(self, group: int, hash_: Hash) -> bool:
        """Take one reference of a block away. False when it isn't held."""
        tree = self.trees.get(group)
        if tree is None or hash_ not in tree.nodes:
            return False
        if tree.remove(hash_):
            self.held -= 1
        return True

    def present(self) -> list[int]:
        """All own keys that are present."""
        first = next(iter(self.trees.values()), None)
        if first is None:
            return []
        if len(self.trees) == 1:
            return list(first.credited)
        return [key for key in first.credited if self._is_present(key)]

    def take(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Keys that came, and keys that went, since the last call."""
        touched, self._touched = self._touched, {}
        stored = [key for key, was in touched.items() if not was and self._is_present(key)]
        removed = [key for key, was in touched.items() if was and not self._is_present(key)]
        return tuple(stored), tuple(removed)

    def _before_flip(self, key: int) -> None:
        if key not in self._touched:
            self._touched[key] = self._is_present(key)

    def _is_present(self, key: int) -> bool:
        return all(key in tree.credited for tree in self.trees.values())
