"""What enters a block's identity beside its tokens, as the engine's events tell it.

An event lists for each block: the adapter's name, images and other media, the cache salt (in a
prompt's first block only), digests of embeddings; all untagged. A medium is a pair of its name and
its first token, counted from the start of the block: negative when it began in a block before.

A medium counts where it begins, at any size of block: behind that every key differs anyway. What
can't be placed (older engines name media by a bare string; embeddings) is mixed into each own block
that its engine block touches, in a form that no request makes: it matches nothing, which is safe.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from .blocks import TOKEN_BYTES, media_identity, placed
from .events import BlockStored

UNPLACED = 0xFFFF_FFFF
"""Stands for the place of what has none."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What isn't text in one engine block."""

    media: tuple[tuple[int, int], ...] = ()
    """Pairs of first token, counted from the block's start, and identity."""
    unplaced: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.media or self.unplaced)

    def within(self, begin: int, end: int, shift: int) -> bytes:
        """What enters the hash of the own block from byte `begin` to `end` of data in which this
        engine block starts at token `shift`."""
        first, behind = begin // TOKEN_BYTES - shift, end // TOKEN_BYTES - shift
        here = [placed(identity, at - first) for at, identity in self.media if first <= at < behind]
        return b"".join(here) + self.unplaced


NOTHING = Extras()


def salt_of(event: BlockStored) -> str:
    """The cache salt of a prompt whose first block the event stores; empty when it has none."""
    salt, _ = _apart(event, 0)
    return salt


def extras_of(event: BlockStored, at: int) -> Extras:
    """What isn't text in block `at` of the event."""
    if event.extra_keys is None:
        return NOTHING
    _, rest = _apart(event, at)
    if not rest:
        return NOTHING
    media, unplaced = [], []
    for one in rest:
        match one:
            case [str() | bytes() as name, int(offset)] if offset < event.block_size:
                if offset >= 0:
                    media.append((offset, media_identity(name)))
            case _:
                unplaced.append(one)
    digest = xxh3_64_intdigest(msgspec.msgpack.encode(unplaced)) if unplaced else None
    return Extras(tuple(sorted(media)), b"" if digest is None else placed(digest, UNPLACED))


def _apart(event: BlockStored, at: int) -> tuple[str, list[Any]]:
    """Salt and other extra keys of a block, without the adapter's name.

    Where old engines name images by a bare string, the last string of a prompt's first block is
    taken for a salt: no request then matches, which is safe.
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
