"""What a reader of KV events believes about an engine's cache: the independent side of a test."""

from collections import Counter
from collections.abc import Iterable

from epp.sim.kv import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent

Prefix = tuple[object, ...]


class CacheModel:
    """Applies events and keeps, for every block, the tokens and keys from the start up to it."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        """How many blocks hold each hash."""
        self.prefixes: dict[int, Prefix] = {}
        """Whole content of every hash ever seen."""

    def apply(self, events: Iterable[KvEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for key in event.block_hashes:
                        assert self.counts[key] > 0, "removed what was not stored"
                        self.counts[key] -= 1
                case AllBlocksCleared():
                    self.counts.clear()

    def contents(self) -> dict[int, int]:
        """Hashes in the cache and how often, in the shape of `BlockPool.contents`."""
        return {key: count for key, count in self.counts.items() if count}

    def cached_tokens(self, prompt: list[int], block_tokens: int, salt: str = "") -> int:
        """Leading tokens of a prompt whose blocks are all there."""
        there = {self.prefixes[key] for key in self.contents()}
        prefix: Prefix = ()
        for start in range(0, len(prompt) - block_tokens + 1, block_tokens):
            keys = (salt,) if salt and start == 0 else ()
            prefix = (*prefix, keys, *prompt[start : start + block_tokens])
            if prefix not in there:
                return start
        return len(prompt) // block_tokens * block_tokens

    def _store(self, event: BlockStored) -> None:
        assert len(event.token_ids) == len(event.block_hashes) * event.block_size
        assert event.extra_keys is not None
        assert len(event.extra_keys) == len(event.block_hashes)
        prefix: Prefix = ()
        if event.parent_block_hash is not None:
            prefix = self.prefixes[event.parent_block_hash]
        for index, (key, extra) in enumerate(
            zip(event.block_hashes, event.extra_keys, strict=True)
        ):
            tokens = event.token_ids[index * event.block_size : (index + 1) * event.block_size]
            prefix = (*prefix, tuple(extra or ()), *tokens)
            assert self.prefixes.setdefault(key, prefix) == prefix, "one hash, two contents"
            self.counts[key] += 1
