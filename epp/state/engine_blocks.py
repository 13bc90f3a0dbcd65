"""From an engine's KV events to own keys: the writer's side of the prefix index.

The rule that the request side shares: the chain of a prompt starts at

    seed_of(lora_name or the engine's served model, salt=cache_salt, lora="")

The event says `lora_name`; where an old engine knows only a `lora_id`, that goes into `lora`, and
no request ever matches. The salt stands in the extra keys of a prompt's first block. All other
extra keys (images, embeddings) are mixed into each own block that their engine block touches: such
a block and all behind it never match plain text.

What earns credit: blocks on the GPU (other tiers are counted and ignored), in groups of full
attention. A group without a kind earns it if it is group 0. Where an engine has several such
groups, a key needs all of them, as a hit does in the engine.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from xxhash import xxh3_64_digest

from .blocks import OWN_BLOCK_TOKENS, TOKEN_BYTES, seed_of
from .engine_tree import Tree
from .events import AllBlocksCleared, BlockRemoved, BlockStored, Event

MAX_BLOCKS = 500_000
"""Engine blocks; about 300 bytes each. Larger than any engine's GPU cache that we know of."""
MAX_GROUPS = 16
FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed. Apply `reset` (forget everything) first; no key is in both lists."""

    reset: bool
    stored: tuple[int, ...]
    removed: tuple[int, ...]

    @property
    def empty(self) -> bool:
        return not (self.reset or self.stored or self.removed)


class EngineBlocks:
    """The cache of one life of one engine, as its events tell it.

    Own keys are present iff every engine block that covers them is held. The owner calls `clear`
    on a gap or a restart. Counters only ever rise.
    """

    def __init__(
        self,
        model: str,
        own_block_tokens: int = OWN_BLOCK_TOKENS,
        max_blocks: int = MAX_BLOCKS,
    ) -> None:
        """`model` is the name by which requests ask for the engine's base model."""
        if own_block_tokens <= 0 or max_blocks <= 0:
            raise ValueError("own_block_tokens and max_blocks must be positive")
        self._model = model
        self._own_bytes = own_block_tokens * TOKEN_BYTES
        self._max_blocks = max_blocks
        self._trees: dict[int, Tree] = {}
        self._held = 0
        self._reset = False
        self._touched: dict[int, bool] = {}
        """Keys that this call may have changed: whether they were present before it."""
        self.orphans = 0
        """Blocks whose parent isn't held: they give no credit."""
        self.duplicates = 0
        """Blocks stored once more while held."""
        self.ignored = 0
        """Events of another tier or another kind of attention."""
        self.unusable = 0
        """Blocks whose tokens are missing or don't fit their size."""
        self.unknown_removals = 0
        """Removed blocks that weren't held, as orphans are not."""
        self.overflows = 0
        """Times that `max_blocks` was reached, each of which forgot everything."""

    def __len__(self) -> int:
        """Engine blocks held."""
        return self._held

    def apply(self, events: Iterable[Event]) -> Delta:
        """Take events in order. After a reset `stored` is all that is present."""
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared():
                    self._forget()
        touched, self._touched = self._touched, {}
        if self._reset:
            self._reset = False
            return Delta(True, tuple(self.present()), ())
        stored = [key for key, was in touched.items() if not was and self._is_present(key)]
        removed = [key for key, was in touched.items() if was and not self._is_present(key)]
        return Delta(False, tuple(stored), tuple(removed))

    def present(self) -> list[int]:
        """All own keys that are present."""
        if len(self._trees) == 1:
            return [key for tree in self._trees.values() for key in tree.credited]
        first = next(iter(self._trees.values()), None)
        return [] if first is None else [key for key in first.credited if self._is_present(key)]

    def clear(self) -> Delta:
        """Forget everything."""
        self._forget()
        return self.apply(())

    def _store(self, event: BlockStored) -> None:
        tree = self._tree_of(event)
        if tree is None:
            self.ignored += 1
            return
        size = event.block_size * TOKEN_BYTES
        if not size or size * len(event.block_hashes) != len(event.tokens):
            self.unusable += len(event.block_hashes)
            return
        parent_hash = event.parent_block_hash
        parent = None if parent_hash is None else tree.nodes.get(parent_hash)
        orphaned = parent_hash is not None and parent is None
        root = self._root_of(event) if parent_hash is None else 0
        for at, hash_ in enumerate(event.block_hashes):
            held = tree.nodes.get(hash_)
            if held is not None:
                held.references += 1
                self.duplicates += 1
                parent, orphaned = held, False
                continue
            if not orphaned and self._held >= self._max_blocks:
                self.overflows += 1
                self._forget()
                tree = self._plant(event.group_idx or 0)
                orphaned = parent is not None
            if orphaned:
                self.orphans += 1
                continue
            tokens = event.tokens[at * size : (at + 1) * size]
            parent = tree.store(hash_, parent, root, tokens, _mixed_in(event, at))
            self._held += 1

    def _remove(self, event: BlockRemoved) -> None:
        tree = self._trees.get(event.group_idx or 0)
        if tree is None or not _on_gpu(event.medium):
            self.ignored += 1
            return
        for hash_ in event.block_hashes:
            if hash_ not in tree.nodes:
                self.unknown_removals += 1
            elif tree.remove(hash_):
                self._held -= 1

    def _tree_of(self, event: BlockStored) -> Tree | None:
        """The tree that an event belongs to; None when it earns no credit."""
        group, kind = event.group_idx or 0, event.kv_cache_spec_kind
        credited = group == 0 if kind is None else kind in FULL_ATTENTION
        if not credited or not _on_gpu(event.medium):
            return None
        tree = self._trees.get(group)
        if tree is None and len(self._trees) < MAX_GROUPS:
            tree = self._plant(group)
        return tree

    def _plant(self, group: int) -> Tree:
        for key in self.present():  # a new group holds none of them yet
            self._before_flip(key)
        tree = self._trees[group] = Tree(self._own_bytes, self._before_flip)
        return tree

    def _forget(self) -> None:
        self._trees = {}
        self._held = 0
        self._touched = {}
        self._reset = True

    def _before_flip(self, key: int) -> None:
        if key not in self._touched:
            self._touched[key] = self._is_present(key)

    def _is_present(self, key: int) -> bool:
        return all(key in tree.credited for tree in self._trees.values())

    def _root_of(self, event: BlockStored) -> int:
        salt, _ = _extras(event, 0)
        adapter = ""
        if not event.lora_name and event.lora_id:
            adapter = f"id {event.lora_id}"
        return seed_of(event.lora_name or self._model, salt=salt, lora=adapter)


def _on_gpu(medium: str | None) -> bool:
    return medium is None or medium.upper() == "GPU"


def _extras(event: BlockStored, at: int) -> tuple[str, list[Any]]:
    """Salt and other extra keys of a block, without the adapter's name.

    The engine lists adapter, images, salt, embeddings, untagged. Only a prompt's first block has a
    salt; where old engines name images by a bare string, the last string there is taken for it: no
    request then matches, which is safe.
    """
    keys = event.extra_keys
    of_block = keys[at] if keys is not None and at < len(keys) else None
    if of_block is None:
        return "", []
    rest = list(of_block) if isinstance(of_block, list | tuple) else [of_block]
    if event.lora_name and event.lora_name in rest:
        rest.remove(event.lora_name)
    salt = ""
    if at == 0 and event.parent_block_hash is None:
        texts = [place for place, key in enumerate(rest) if isinstance(key, str)]
        salt = rest.pop(texts[-1]) if texts else ""
    return salt, rest


def _mixed_in(event: BlockStored, at: int) -> bytes:
    if event.extra_keys is None:
        return b""
    _, rest = _extras(event, at)
    return xxh3_64_digest(msgspec.msgpack.encode(rest)) if rest else b""
