"""What a KV block is called and what is in it: numbers that are the same in every engine. Pure."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from xxhash import xxh3_64_intdigest

from epp.sim.media import Item

ExtraKeys = list[str | tuple[str, int]] | None

Content = tuple[int, int]
"""What is in a block: hash of it when it is full, and of the part of it that ends a prompt. Equal
in all engines; 0 is no such thing."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """What besides tokens decides whether a block may be shared."""

    lora: str = ""
    salt: str = ""
    media: tuple[Item, ...] = ()
    """In the order of their places."""

    def extra_keys(self, block: int, block_tokens: int) -> ExtraKeys:
        """Keys of the `block`-th block: the adapter marks every block, an item those that it
        reaches into, with its place counted from the block's start, the salt the first."""
        keys: list[str | tuple[str, int]] = [self.lora] if self.lora else []
        begin = block * block_tokens
        keys += [
            (item.name, item.start - begin)
            for item in self.media
            if item.start < begin + block_tokens and begin < item.start + item.tokens
        ]
        if self.salt and block == 0:
            keys.append(self.salt)
        return keys or None


NO_NAMESPACE = Namespace()


class BlockHasher:
    """Chained 64-bit hashes of token sequences, the same in every engine."""

    __slots__ = ("_block_tokens",)

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens

    def extend(self, hashes: list[int], tokens: Sequence[int], namespace: Namespace) -> None:
        """Append the hashes of those full blocks of `tokens` that `hashes` does not have yet."""
        size = self._block_tokens
        for block in range(len(hashes), len(tokens) // size):
            piece = tokens[block * size : (block + 1) * size]
            extra = namespace.extra_keys(block, size)
            hashes.append(_link(hashes[-1] if hashes else 0, piece, extra))

    def tail(self, hashes: Sequence[int], tokens: Sequence[int], namespace: Namespace) -> int:
        """Hash of the last block of `tokens`, which is not full; 0 when there is none.

        `hashes` are those of the full blocks before it, at least.
        """
        size = self._block_tokens
        block, rest = divmod(len(tokens), size)
        if not rest:
            return 0
        parent = hashes[block - 1] if block else 0
        return _link(parent, tokens[-rest:], namespace.extra_keys(block, size))


def mixed(one: int, other: int) -> int:
    """A number, not 0, that two numbers determine."""
    data = one.to_bytes(8, "little") + other.to_bytes(8, "little")
    return xxh3_64_intdigest(data) or 1


def _link(parent: int, tokens: Sequence[int], extra: ExtraKeys) -> int:
    data = parent.to_bytes(8, "little") + array("I", tokens).tobytes()
    if extra is not None:
        data += msgspec.json.encode(extra)
    return xxh3_64_intdigest(data)
