"""Block identity: what a stretch of prompt is called, on every engine and in every replica.

A prompt is cut into own blocks. Each has a local hash, of its tokens alone (unsigned 32 bit, little
endian); its key chains the local hashes up to it (unsigned 64 bit, little endian), so one key names
the whole prefix up to its block:

    local_i = xxh3_64(tokens of block i, seed)
    key_0   = local_0
    key_i   = xxh3_64(key_{i-1} || local_i, seed)

With a fixed seed these are the block hashes that Dynamo's router makes. Our seed says what else
must agree for KV to be the same: the model's (or adapter's) name, the cache salt, the namespace,
and the version of these rules. Images and other media enter the local hash of the block in which
they begin, by their place in it.

Keys don't depend on the engine's own hashes, their seed or its block size. They are no
cryptography: a collision costs a cache miss, never a wrong answer.
"""

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from struct import Struct, iter_unpack

from xxhash import xxh3_64_intdigest

SCHEME = 2
"""Version of the rules on this page. Readers ignore keys of another scheme."""
OWN_BLOCK_TOKENS = 64
"""Tokens in one own block."""
TOKEN_BYTES = 4
"""Bytes of one packed token id."""
ESTIMATE_BYTES_PER_TOKEN = 4
"""Bytes of text that stand in for one token where there is no tokenizer."""

MAX_KNOWN_CHARS = 512
"""Of longer names a seed is made anew each time: clients choose them."""

_ROOT = b"epp own block %d" % SCHEME
_TEXT = b"epp own block of bytes, scheme 3"
_pair = Struct("<QQ").pack
_media = Struct("<QI").pack
_Blocks = Iterator[tuple[bytes]]
"""One after the other, each in a tuple of its own."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What all writers and readers of a pool must agree on, beside the model.

    `salt_key` is the secret under which cache salts are hashed. Whoever reads the store sees keys
    that a salt entered, never the salt; without the secret nobody can try guesses of it. A default
    made from the pool's name protects against reading a salt off, not against guessing a short one:
    the name is no secret. Neither hides how prompts of one salt relate to each other.
    """

    salt_key: bytes = field(default=b"", repr=False)
    namespace: str = ""
    """What else makes KV of the same tokens different: revision, data type, layout."""

    @classmethod
    def of_pool(cls, pool: str, *, salt_key: bytes | None = None, namespace: str = "") -> "Naming":
        """`salt_key`: the pool's secret, if it has one (`epp.config.salt_key`)."""
        if salt_key is None:
            salt_key = b"pool " + pool.encode("utf-8", "surrogatepass")
        return cls(blake2b(salt_key, person=b"epp salt key").digest(), namespace)


PLAIN = Naming()


@dataclass(frozen=True, slots=True)
class Media:
    """Something in a prompt that isn't text: an image, a clip."""

    identity: int
    """64 bits (`media_identity`)."""
    position: int
    """Index of its first token in the prompt."""


def media_identity(name: str | bytes) -> int:
    """Identity of a medium that an engine knows by this name (its hash, or what a client gave)."""
    return xxh3_64_intdigest(
        name.encode("utf-8", "surrogatepass") if isinstance(name, str) else name
    )


def seed_of(model: str, *, salt: str = "", lora: str = "", naming: Naming = PLAIN) -> int:
    """Seed of a chain (64 bit): what differs in any of them never shares a key.

    `model` is the name that the request asks for, which for a LoRA adapter is the adapter's.
    """
    known = len(model) + len(salt) + len(lora) <= MAX_KNOWN_CHARS
    return (_known_seed if known else _seed)(model, salt, lora, naming)


def _seed(model: str, salt: str, lora: str, naming: Naming) -> int:
    framed = bytearray(_ROOT)
    # A lone surrogate is legal in JSON, so it can stand in a model's name.
    texts = [text.encode("utf-8", "surrogatepass") for text in (model, salt, lora)]
    if salt:
        texts[1] = blake2b(texts[1], key=naming.salt_key, digest_size=16).digest()
    for data in (*texts, naming.namespace.encode("utf-8", "surrogatepass")):
        framed += len(data).to_bytes(8, "little")
        framed += data
    return xxh3_64_intdigest(bytes(framed))


_known_seed = lru_cache(maxsize=1024)(_seed)


def token_keys(
    tokens: Sequence[int] | bytes,
    seed: int,
    block_tokens: int = OWN_BLOCK_TOKENS,
    media: Iterable[Media] = (),
) -> tuple[int, ...]:
    """Keys of the full blocks of `tokens`, first block first; a partial last block has none.

    `tokens` are ids, or ids already packed (see `pack`). `media` may stand in any order. Raises
    ValueError for an id outside 0..2**32-1 and for packed ids of a broken length.
    """
    data = tokens if isinstance(tokens, bytes) else pack(tokens)
    if len(data) % TOKEN_BYTES:
        raise ValueError(f"packed token ids take {TOKEN_BYTES} bytes each, got {len(data)} bytes")
    size = TOKEN_BYTES * _positive(block_tokens)
    blocks = _blocks(data, size)
    there = _by_block(media, block_tokens)
    if there:
        blocks = ((block + there.get(at, b""),) for at, (block,) in enumerate(blocks))
    return _chained(blocks, seed)


def more_keys(
    tokens: bytes, parent: int | None, seed: int, block_tokens: int = OWN_BLOCK_TOKENS
) -> tuple[int, ...]:
    """Keys of the full blocks of packed `tokens` that follow the block `parent`; None: the first.

    Raises as `token_keys` does.
    """
    if len(tokens) % TOKEN_BYTES:
        raise ValueError(f"packed token ids take {TOKEN_BYTES} bytes each, got {len(tokens)} bytes")
    size = TOKEN_BYTES * _positive(block_tokens)
    return _chained(_blocks(tokens, size), seed, parent)


def byte_keys(data: bytes, seed: int, block_tokens: int = OWN_BLOCK_TOKENS) -> tuple[int, ...]:
    """Keys of text that nobody has tokenized, for predictions only.

    A block is `ESTIMATE_BYTES_PER_TOKEN * block_tokens` bytes, and its key their hash, seeded with
    the key before. No engine knows these keys, so that one hash a block is enough. They live in a
    domain of their own: they never meet those of `token_keys`.
    """
    digest, key = xxh3_64_intdigest, xxh3_64_intdigest(_TEXT, seed)
    size = ESTIMATE_BYTES_PER_TOKEN * _positive(block_tokens)
    blocks = _cutter(size, len(data) // size)(data)
    return tuple([key := digest(block, key) for block in blocks])


def local_hash(block: bytes, seed: int, extra: bytes = b"") -> int:
    """Hash of one whole block alone. `extra`: what isn't text in it (`placed`), if anything."""
    return xxh3_64_intdigest(block + extra if extra else block, seed)


def chained(parent: int | None, local: int, seed: int) -> int:
    """Key of the block that follows `parent`, or that starts the prompt (None)."""
    return local if parent is None else xxh3_64_intdigest(_pair(parent, local), seed)


def placed(identity: int, offset: int) -> bytes:
    """One medium in a block that begins `offset` tokens into it, as `local_hash` takes it.

    12 bytes, which is a whole number of tokens: it is the block's fixed length that keeps a block
    with media from equalling one without.
    """
    return _media(identity, offset)


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as unsigned 32 bit, little endian. Raises ValueError for what isn't one."""
    try:
        packed = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids are integers from 0 to 2**32-1: {error}") from error
    if sys.byteorder == "big":  # pragma: no cover - no such machine to test with
        packed.byteswap()
    return packed.tobytes()


def _by_block(media: Iterable[Media], block_tokens: int) -> dict[int, bytes]:
    there: dict[int, bytes] = {}
    for one in sorted(media, key=lambda one: (one.position, one.identity)):
        block, offset = divmod(one.position, block_tokens)
        there[block] = there.get(block, b"") + placed(one.identity, offset)
    return there


def _blocks(data: bytes, size: int) -> _Blocks:
    return iter_unpack(f"{size}s", memoryview(data)[: len(data) // size * size])


@lru_cache(maxsize=32)
def _cutter(size: int, count: int) -> Callable[[bytes], tuple[bytes, ...]]:
    """Cuts so many blocks off a text at once, which takes half of what one after the other does."""
    return Struct(f"{size}s" * count).unpack_from


def _chained(blocks: _Blocks, seed: int, parent: int | None = None) -> tuple[int, ...]:
    """Keys of these blocks, with what isn't text in them."""
    digest, pair = xxh3_64_intdigest, _pair
    if parent is not None:
        key = parent
        return tuple([key := digest(pair(key, digest(block, seed)), seed) for (block,) in blocks])
    root = next(blocks, None)
    if root is None:
        return ()
    key = first = digest(root[0], seed)
    return (first, *[key := digest(pair(key, digest(block, seed)), seed) for (block,) in blocks])


def _positive(block_tokens: int) -> int:
    if block_tokens <= 0:
        raise ValueError(f"block_tokens must be positive, got {block_tokens}")
    return block_tokens
