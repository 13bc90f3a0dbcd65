"""Paged KV memory of one engine with a prefix cache over its blocks. Pure.

Rule 1: a block is used (somebody holds it), cached (nobody holds it, but its content is indexed)
or free; the three always add up to the total.
Rule 2: idle blocks are taken free ones first, then cached ones by age; of one request the tail is
older than the head, so that what many prompts share goes last.
Rule 3: every change of the index is an event. Two blocks may hold the same content (a prompt that
is cached whole computes its last block again), so a hash can be stored twice and removed twice.
Rule 4: a block is found by the hash of what should be in it, and keeps apart what really is in it.
The two differ once wrong KV was pulled from elsewhere; content stays until the block is taken for
something new, whoever let go of it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from epp.sim.hashing import Content, ExtraKeys, Namespace, mixed


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="BlockStored"):
    """Blocks that follow each other are in the cache from this event on. Shape of vLLM 0.32."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[ExtraKeys] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="BlockRemoved"
):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared"):
    """Nothing is cached any more."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared

MEDIUM = "GPU"
GROUP = 0


class BlockPool:
    """The blocks of one engine. Callers name blocks by the numbers that `allocate` gave them."""

    def __init__(self, total: int, block_tokens: int, seed: int = 0) -> None:
        self.total = total
        self.block_tokens = block_tokens
        self._seed = seed
        self._holders = [0] * total
        self._hash: list[int | None] = [None] * total
        self._contents: list[Content] = [(0, 0)] * total
        self._taken = 0
        self._indexed: dict[int, list[int]] = {}
        self._free = list(range(total - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._events: list[KvEvent] = []

    @property
    def free(self) -> int:
        """Blocks without any content."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and whose content can be found."""
        return len(self._idle)

    @property
    def used(self) -> int:
        return self.total - len(self._free) - len(self._idle)

    def contents(self) -> dict[int, int]:
        """Indexed hashes as events name them, and how many blocks hold each."""
        return {self._name(key): len(blocks) for key, blocks in self._indexed.items()}

    def lookup(self, hashes: Sequence[int]) -> list[int]:
        """Blocks of the longest indexed prefix of a chain of hashes; nobody holds them yet."""
        found: list[int] = []
        for key in hashes:
            blocks = self._indexed.get(key)
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def can_take(self, fresh: int, hits: Iterable[int] = ()) -> bool:
        """Whether `fresh` blocks can be allocated once the blocks of `hits` are held."""
        idle_hits = sum(1 for block in hits if not self._holders[block])
        return fresh <= len(self._free) + len(self._idle) - idle_hits

    def hold(self, blocks: Iterable[int]) -> None:
        """Keep found blocks from being taken."""
        for block in blocks:
            if not self._holders[block]:
                del self._idle[block]
            self._holders[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take blocks for new content; call `can_take` before. Forgets the oldest cached ones."""
        taken: list[int] = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._idle.popitem(last=False)
                self._unindex(block)
            self._holders[block] = 1
            self._taken += 1
            self._contents[block] = (mixed(self._taken, block), 0)
            taken.append(block)
        return taken

    def index(
        self,
        blocks: Sequence[int],
        hashes: Sequence[int],
        *,
        first: int,
        tokens: Sequence[int],
        namespace: Namespace,
        flaw: int = 0,
    ) -> None:
        """Make held blocks findable: those from position `first` of a chain up to `len(hashes)`.

        They hold what their hashes say, or something else that a `flaw` other than 0 determines.
        """
        if first >= len(hashes):
            return
        for block, key in zip(blocks[first : len(hashes)], hashes[first:], strict=True):
            self._hash[block] = key
            self._contents[block] = (mixed(key, flaw) if flaw else key, self._contents[block][1])
            self._indexed.setdefault(key, []).append(block)
        size = self.block_tokens
        extra = [namespace.extra_keys(block, size) for block in range(first, len(hashes))]
        self._events.append(
            BlockStored(
                block_hashes=[self._name(key) for key in hashes[first:]],
                parent_block_hash=self._name(hashes[first - 1]) if first else None,
                token_ids=list(tokens[first * size : len(hashes) * size]),
                block_size=size,
                lora_id=None,
                medium=MEDIUM,
                lora_name=namespace.lora or None,
                extra_keys=extra,
                group_idx=GROUP,
                kv_cache_spec_kind="full_attention",
            )
        )

    def read(self, block: int) -> Content:
        """What is in a block, whoever holds it. Raises IndexError when there is no such block."""
        if block < 0:
            raise IndexError(block)
        return self._contents[block]

    def write(self, block: int, content: Content) -> None:
        """Replace what is in a held block; its hash stays."""
        self._contents[block] = content

    def end_prompt(self, block: int, tail: int) -> None:
        """Note what a held block holds of the prompt that ends in it."""
        self._contents[block] = (self._contents[block][0], tail)

    def flaw(self, blocks: Sequence[int], hashes: Sequence[int]) -> int:
        """0 when blocks hold what these hashes say, else a number that the difference makes."""
        flaw = 0
        for block, key in zip(blocks, hashes, strict=False):
            content = self._contents[block][0]
            if content != key:
                flaw = mixed(flaw, content)
        return flaw

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a request's blocks; the last one becomes the oldest."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if self._hash[block] is None:
                self._free.append(block)
            else:
                self._idle[block] = None

    def evict_idle(self, hashes: Iterable[int] | None = None) -> int:
        """Forget cached blocks that nobody holds, all or those of some hashes; returns how many."""
        if hashes is None:
            victims = list(self._idle)
        else:
            found = (block for key in set(hashes) for block in self._indexed.get(key, ()))
            victims = [block for block in found if block in self._idle]
        for block in victims:
            del self._idle[block]
            self._unindex(block)
            self._free.append(block)
        return len(victims)

    def reset(self) -> bool:
        """Forget everything cached. Does nothing and returns False while a block is held."""
        if self.used:
            return False
        for block in self._idle:
            self._hash[block] = None
            self._free.append(block)
        self._idle.clear()
        self._indexed.clear()
        self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> tuple[KvEvent, ...]:
        """Events since the last call, oldest first."""
        events, self._events = tuple(self._events), []
        return events

    def _unindex(self, block: int) -> None:
        key = self._hash[block]
        if key is None:
            return
        self._hash[block] = None
        blocks = self._indexed[key]
        blocks.remove(block)
        if not blocks:
            del self._indexed[key]
        name = self._name(key)
        self._events.append(BlockRemoved(block_hashes=[name], medium=MEDIUM, group_idx=GROUP))

    def _name(self, key: int) -> int:
        """A hash as events say it: engines with another seed name the same block differently."""
        return xxh3_64_intdigest(key.to_bytes(8, "little"), seed=self._seed) if self._seed else key
