"""Blocks whose parent isn't known: kept until it comes, for they earn nothing without it. Bounded.

An engine tells of parents first. So orphans are a sign that something was missed: a message, or
the time before the writer began. They find their places when the parent is told after all, and go
when the engine removes them.
"""

from dataclasses import dataclass, field

from .engine_extras import NOTHING, Extras
from .events import Hash

MAX_ORPHANS = 20_000
"""Blocks; the tokens of one take some hundred bytes. Further ones are dropped."""


@dataclass(slots=True)
class Block:
    """One block as an event stores it."""

    tier: str
    group: int
    hash: Hash
    parent: Hash | None
    seed: int
    """Begins the chain where there is no parent."""
    tokens: bytes
    extras: Extras = field(default=NOTHING, repr=False)
    references: int = 1


class Orphans:
    """Orphans of all tiers and groups, by their names and by those of their parents."""

    def __init__(self, most: int = MAX_ORPHANS) -> None:
        if most <= 0:
            raise ValueError("most must be positive")
        self._most = most
        self._by_name: dict[tuple[str, int, Hash], Block] = {}
        self._by_parent: dict[tuple[int, Hash], list[Block]] = {}
        self.dropped = 0
        """Those that came when there were too many."""

    def __len__(self) -> int:
        return len(self._by_name)

    def hold(self, orphan: Block) -> None:
        """Keep one that has a parent; a second mention of the same one is a reference more."""
        name = (orphan.tier, orphan.group, orphan.hash)
        known = self._by_name.get(name)
        if known is not None:
            known.references += 1
            return
        if len(self._by_name) >= self._most:
            self.dropped += 1
            return
        self._by_name[name] = orphan
        self._by_parent.setdefault((orphan.group, _parent(orphan)), []).append(orphan)

    def remove(self, tier: str, group: int, hash_: Hash) -> bool:
        """Take one reference away. False when no such orphan is held."""
        orphan = self._by_name.get((tier, group, hash_))
        if orphan is None:
            return False
        orphan.references -= 1
        if not orphan.references:
            self._drop(orphan)
        return True

    def children(self, group: int, parent: Hash) -> list[Block]:
        """Those that wait for this parent, which is known from here on: they wait no longer."""
        found = self._by_parent.pop((group, parent), [])
        for orphan in found:
            del self._by_name[orphan.tier, orphan.group, orphan.hash]
        return found

    def clear(self) -> None:
        self._by_name.clear()
        self._by_parent.clear()

    def _drop(self, orphan: Block) -> None:
        del self._by_name[orphan.tier, orphan.group, orphan.hash]
        place = orphan.group, _parent(orphan)
        siblings = self._by_parent[place]
        siblings.remove(orphan)
        if not siblings:
            del self._by_parent[place]


def _parent(orphan: Block) -> Hash:
    assert orphan.parent is not None
    return orphan.parent
