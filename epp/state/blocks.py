"""Block identity: what a stretch of prompt is called, on every engine and in every replica.

A prompt is cut into own blocks. The key of a block is xxh3-64 over the bytes of its token ids
(unsigned 32 bit, little endian) with the key of the block before it as seed, so one key names the
whole prefix up to its block:

    root  = xxh3_64(scheme, model, salt, lora; each with its length)
    key_i = xxh3_64(bytes of block i, seed = key_{i-1}),  key_{-1} = root

The parent goes in as seed because that needs no copy of the block: 8192 tokens cost about 40
microseconds of hashing. Keys don't depend on the engine's own hashes, their seed or its block
size. They are no cryptography: a collision costs a cache miss, never a wrong answer.
"""

import sys
from array import array
from collections.abc import Sequence
from struct import iter_unpack

from xxhash import xxh3_64_intdigest

SCHEME = 1
"""Version of the rules on this page. Readers ignore keys of another scheme."""
OWN_BLOCK_TOKENS = 64
"""Tokens in one own block."""
TOKEN_BYTES = 4
"""Bytes of one packed token id."""
ESTIMATE_BYTES_PER_TOKEN = 4
"""Bytes of text that stand in for one token where there is no tokenizer."""

_ROOT = b"epp own block %d" % SCHEME
_TEXT = b"epp own block %d of bytes" % SCHEME
_EXTRA = b"\x01"  # makes the input's length odd, which no block of whole tokens has


def seed_of(model: str, *, salt: str = "", lora: str = "") -> int:
    """Root of a chain (64 bit): what differs in any of the three never shares a key.

    `model` is the name that the request asks for, which for a LoRA adapter is the adapter's.
    """
    framed = bytearray(_ROOT)
    for text in (model, salt, lora):
        # A lone surrogate is legal in JSON, so it can stand in a model's name.
        data = text.encode("utf-8", "surrogatepass")
        framed += len(data).to_bytes(8, "little")
        framed += data
    return xxh3_64_intdigest(bytes(framed))


def token_keys(
    tokens: Sequence[int] | bytes, seed: int, block_tokens: int = OWN_BLOCK_TOKENS
) -> tuple[int, ...]:
    """Keys of the full blocks of `tokens`, first block first; a partial last block has none.

    `tokens` are ids, or ids already packed (see `pack`). Raises ValueError for an id outside
    0..2**32-1 and for packed ids of a broken length.
    """
    data = tokens if isinstance(tokens, bytes) else pack(tokens)
    if len(data) % TOKEN_BYTES:
        raise ValueError(f"packed token ids take {TOKEN_BYTES} bytes each, got {len(data)} bytes")
    return _chain(data, seed, TOKEN_BYTES * _positive(block_tokens))


def byte_keys(data: bytes, seed: int, block_tokens: int = OWN_BLOCK_TOKENS) -> tuple[int, ...]:
    """Keys of text that nobody has tokenized, for predictions only.

    A block is `ESTIMATE_BYTES_PER_TOKEN * block_tokens` bytes. The keys live in a domain of their
    own: they never meet those of `token_keys`.
    """
    root = xxh3_64_intdigest(_TEXT, seed)
    return _chain(data, root, ESTIMATE_BYTES_PER_TOKEN * _positive(block_tokens))


def block_key(parent: int, block: bytes, extra: bytes = b"") -> int:
    """Key of the block that follows `parent`.

    `extra` are the identities of what isn't text in the block (images, embeddings): a block with
    any never has the key of one without.
    """
    return xxh3_64_intdigest(block + _EXTRA + extra if extra else block, parent)


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as unsigned 32 bit, little endian. Raises ValueError for what isn't one."""
    try:
        packed = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids are integers from 0 to 2**32-1: {error}") from error
    if sys.byteorder == "big":  # pragma: no cover
        packed.byteswap()
    return packed.tobytes()


def _chain(data: bytes, key: int, size: int) -> tuple[int, ...]:
    whole = memoryview(data)[: len(data) // size * size]
    digest = xxh3_64_intdigest
    return tuple([key := digest(block, key) for (block,) in iter_unpack(f"{size}s", whole)])


def _positive(block_tokens: int) -> int:
    if block_tokens <= 0:
        raise ValueError(f"block_tokens must be positive, got {block_tokens}")
    return block_tokens
