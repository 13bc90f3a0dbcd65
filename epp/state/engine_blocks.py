"""From an engine's KV events to own keys: the writer's side of the prefix index.

The rule that the request side shares: the chain of a prompt starts with

    seed_of(lora_name or the engine's served model, salt=cache_salt, naming=the pool's)

The event says `lora_name`; where an old engine knows only a `lora_id`, that goes into `lora`, and
no request ever matches. What else isn't text is told in `engine_extras`.

What earns credit: groups of full attention, on each tier by itself. A group without a kind earns it
if it is group 0. An own block that lies in part on one tier and in part on another is on neither.
Slower tiers often say no tokens: such a block is known by its hash while another tier holds it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .blocks import OWN_BLOCK_TOKENS, PLAIN, TOKEN_BYTES, Naming, seed_of
from .engine_extras import extras_of, salt_of
from .engine_memory import Frozen, recall
from .engine_orphans import MAX_ORPHANS, Block, Orphans
from .engine_tier import Tier
from .engine_tree import Node, Tree
from .entries import Entries
from .events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Hash
from .records import MAX_TIER_NAME, MAX_TIERS, TierChange

MAX_BLOCKS = 500_000
"""Engine blocks of one tier; about 300 bytes each. More than any GPU's cache that we know of."""
FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
GPU = "GPU"


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed. Apply `reset` (forget everything) first; no key is in both lists of a tier."""

    reset: bool
    stored: tuple[int, ...]
    removed: tuple[int, ...]
    tiers: tuple[TierChange, ...] = ()
    """Of tiers other than the GPU."""

    @property
    def empty(self) -> bool:
        return not (self.reset or self.stored or self.removed or self.tiers)


class EngineBlocks:
    """The cache of one life of one engine, as its events tell it.

    Own keys are present on a tier iff it holds every engine block that covers them. The owner calls
    `clear` on a gap or a restart. Counters only ever rise.
    """

    def __init__(
        self,
        model: str,
        own_block_tokens: int = OWN_BLOCK_TOKENS,
        max_blocks: int = MAX_BLOCKS,
        *,
        naming: Naming = PLAIN,
        max_orphans: int = MAX_ORPHANS,
    ) -> None:
        """`model` is the name by which requests ask for the engine's base model."""
        if own_block_tokens <= 0 or max_blocks <= 0:
            raise ValueError("own_block_tokens and max_blocks must be positive")
        self._model = model
        self._naming = naming
        self._own_bytes = own_block_tokens * TOKEN_BYTES
        self._max_blocks = max_blocks
        self._tiers: dict[str, Tier] = {}
        self._orphans = Orphans(max_orphans)
        self._reset = False
        self.orphans = 0
        """Blocks that came without a known parent."""
        self.duplicates = 0
        """Blocks stored once more while held."""
        self.ignored = 0
        """Events of another kind of attention, or of tiers and groups beyond the limits."""
        self.unusable = 0
        """Blocks whose tokens are missing or don't fit their size."""
        self.unknown_removals = 0
        """Removed blocks that weren't held."""
        self.overflows = 0
        """Times that `max_blocks` was reached: on the GPU everything is forgotten then, a slower
        tier takes no more."""

    def __len__(self) -> int:
        """Engine blocks held, on all tiers."""
        return sum(tier.held for tier in self._tiers.values())

    @property
    def waiting(self) -> int:
        """Blocks held back until their parent is known."""
        return len(self._orphans)

    @property
    def dropped_orphans(self) -> int:
        return self._orphans.dropped

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
        changes = {name: tier.take() for name, tier in self._tiers.items()}
        if self._reset:
            self._reset = False
            present = self.tiers_present()
            slower = tuple(TierChange(name, keys) for name, keys in present.items() if keys)
            return Delta(True, tuple(self.present()), (), slower)
        stored, removed = changes.pop(GPU, ((), ()))
        slower = tuple(TierChange(name, *change) for name, change in changes.items() if any(change))
        return Delta(False, stored, removed, slower)

    def present(self) -> list[int]:
        """All own keys that are present on the GPU."""
        tier = self._tiers.get(GPU)
        return [] if tier is None else tier.present()

    def tiers_present(self) -> dict[str, tuple[int, ...]]:
        """Own keys that are present on each slower tier."""
        return {name: tuple(tier.present()) for name, tier in self._tiers.items() if name != GPU}

    def clear(self) -> Delta:
        """Forget everything."""
        self._forget()
        return self.apply(())

    def freeze(self, engine_seq: int | None) -> Frozen:
        """All that another writer needs to go on from here; orphans are left out."""
        return Frozen(self._tiers, engine_seq)

    def restore(self, entries: Entries) -> Delta:
        """Forget everything and take what a writer before remembered. What doesn't fit is left."""
        self._forget()
        for name, group, nodes in recall(entries):
            tier = self._tier(name)
            tree = None if tier is None else tier.tree(group)
            if tier is None or tree is None:
                continue
            for node in nodes:
                if node.hash not in tree.nodes and tier.held < self._max_blocks:
                    tree.restore(node)
                    tier.held += 1
        return self.apply(())

    def take(self, other: "EngineBlocks") -> Delta:
        """Forget everything and hold what `other` does, which is of no use afterwards. However much
        that is, it is one step and the list of what is present."""
        self._forget()
        self._tiers = other._tiers
        return self.apply(())

    def _store(self, event: BlockStored) -> None:
        name, group, kind = _tier_name(event.medium), event.group_idx or 0, event.kv_cache_spec_kind
        credited = group == 0 if kind is None else kind in FULL_ATTENTION
        tier = self._tier(name) if credited else None
        if tier is None or tier.tree(group) is None:
            self.ignored += 1
            return
        size = event.block_size * TOKEN_BYTES
        if not event.tokens:
            self._store_by_name(name, group, event.block_hashes)
            return
        if not size or size * len(event.block_hashes) != len(event.tokens):
            self.unusable += len(event.block_hashes)
            return
        seed = self._seed_of(event) if event.parent_block_hash is None else 0
        parent = event.parent_block_hash
        for at, hash_ in enumerate(event.block_hashes):
            tokens = event.tokens[at * size : (at + 1) * size]
            self._place(Block(name, group, hash_, parent, seed, tokens, extras_of(event, at)))
            parent = hash_

    def _place(self, first: Block) -> None:
        """Take a block in, and all orphans that waited for it; or hold it as an orphan."""
        todo = [first]
        while todo:
            block = todo.pop()
            tier, tree = self._tree(block.tier, block.group)
            held = tree.nodes.get(block.hash)
            if held is not None:
                held.references += block.references
                self.duplicates += 1
                continue
            parent = None if block.parent is None else self._parent(tree, block)
            if block.parent is not None and (parent is None or parent.tail is None):
                self._hold(block)
            elif self._has_room(tier):
                node = tree.store(block.hash, parent, block.seed, block.tokens, block.extras)
                node.references = block.references
                tier.held += 1
                todo.extend(reversed(self._orphans.children(block.group, block.hash)))
            elif block.tier == GPU and parent is not None:
                self._hold(block)
            elif block.tier == GPU:
                todo.append(block)  # everything was forgotten: there is room

    def _store_by_name(self, tier: str, group: int, hashes: Iterable[Hash]) -> None:
        """Blocks without tokens: what they hold is known while another tier holds them too."""
        for hash_ in hashes:
            here, tree = self._tree(tier, group)
            held, origin = tree.nodes.get(hash_), self._elsewhere(group, hash_)
            if held is not None:
                held.references += 1
                self.duplicates += 1
            elif origin is None:
                self.unusable += 1
            elif self._has_room(here):
                tree.copy(origin)
                here.held += 1

    def _remove(self, event: BlockRemoved) -> None:
        name, group = _tier_name(event.medium), event.group_idx or 0
        tier = self._tiers.get(name)
        if tier is None or group not in tier.trees:
            self.ignored += 1
            return
        for hash_ in event.block_hashes:
            if not tier.remove(group, hash_) and not self._orphans.remove(name, group, hash_):
                self.unknown_removals += 1

    def _tier(self, name: str) -> Tier | None:
        tier = self._tiers.get(name)
        if tier is None and len(self._tiers) <= MAX_TIERS and len(name) <= MAX_TIER_NAME:
            tier = self._tiers[name] = Tier(self._own_bytes)
        return tier

    def _tree(self, name: str, group: int) -> tuple[Tier, Tree]:
        """Of a tier and group that are within the limits."""
        tier = self._tier(name)
        tree = None if tier is None else tier.tree(group)
        assert tier is not None
        assert tree is not None
        return tier, tree

    def _parent(self, tree: Tree, block: Block) -> Node | None:
        assert block.parent is not None
        here = tree.nodes.get(block.parent)
        return self._elsewhere(block.group, block.parent) if here is None else here

    def _elsewhere(self, group: int, hash_: Hash) -> Node | None:
        """A block on whatever tier holds it."""
        for tier in self._tiers.values():
            tree = tier.trees.get(group)
            node = None if tree is None else tree.nodes.get(hash_)
            if node is not None:
                return node
        return None

    def _hold(self, block: Block) -> None:
        self.orphans += 1
        self._orphans.hold(block)

    def _has_room(self, tier: Tier) -> bool:
        """Whether one more block fits. On the GPU new blocks matter most: the old ones go."""
        if tier.held < self._max_blocks:
            return True
        self.overflows += 1
        if tier is self._tiers.get(GPU):
            self._forget()
        return False

    def _forget(self) -> None:
        self._tiers = {}
        self._orphans.clear()
        self._reset = True

    def _seed_of(self, event: BlockStored) -> int:
        adapter = ""
        if not event.lora_name and event.lora_id:
            adapter = f"id {event.lora_id}"
        return seed_of(
            event.lora_name or self._model,
            salt=salt_of(event),
            lora=adapter,
            naming=self._naming,
        )


def _tier_name(medium: str | None) -> str:
    return GPU if medium is None else medium.upper()
