"""KV events of an engine, from the bytes of its publisher to values.

A message has three frames: topic, sequence (8 bytes, big endian, signed), payload. The payload is
msgpack and comes in these shapes, all of which are read:

* batch: `[ts, events, dp_rank]`, the rank possibly left out, or a map with the same names (SGLang
  calls the rank `attn_dp_rank`);
* event: a map with its name under `type` (vLLM 0.27 and later), or `[name, fields...]` (before).
  An array may be shorter (fields at the end left out) or longer (fields from the future). SGLang
  with EAGLE tells pairs of each token and the next one: the first of a pair counts.

Events of an unknown name are skipped and counted. An event of a known name that can't be read
spoils its batch: what it would have removed is unknown, so the owner must start over.

The engine's hashes are opaque: integers of either sign or bytes, equal only to themselves. One
exception: simulators of the array form write 0 where a block has no parent, so there, and only
there, parent 0 means none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from epp.errors import EppError

from .blocks import pack

MAX_PAYLOAD = 16 << 20
"""Bytes. vLLM's batches are some kilobytes; a flush of a million token ids takes five megabytes."""

END_OF_REPLAY = b"\xff" * 8
"""Sequence of the message that ends a replay."""

Hash = int | bytes
"""An engine's name of a block: any integer of 64 bits, or bytes."""


class DecodeError(EppError):
    """A message that can't be read. The state after it is unknown until a reset."""

    reason = "kv-event"


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of the publisher, not yet decoded."""

    topic: bytes
    seq: int
    """From 0 in each life of the publisher."""
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored:
    """Consecutive blocks entered the cache."""

    block_hashes: tuple[Hash, ...]
    parent_block_hash: Hash | None
    """The block before the first of them; None when they start the prompt."""
    tokens: bytes
    """Packed token ids of all the blocks (`blocks.pack`). Empty from tiers that don't know them."""
    block_size: int
    """Tokens in one of these blocks, at least 0."""
    lora_id: int | str | None = None
    medium: str | None = None
    """Tier; None means GPU."""
    lora_name: str | None = None
    extra_keys: tuple[Any, ...] | None = field(default=None, repr=False)
    """Per block: None, or what enters its hash beside tokens. Holds cache salts: never log it."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRemoved:
    """Blocks left the cache, once for each time that they were stored."""

    block_hashes: tuple[Hash, ...]
    medium: str | None = None
    group_idx: int | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing is cached."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in the order in which they happened."""

    ts: float
    """Unix time at the publisher, in seconds."""
    events: tuple[Event, ...]
    dp_rank: int | None
    skipped: int
    """Events of a name that we don't know."""


class _Batch(msgspec.Struct):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None
    attn_dp_rank: int | None = None

    @property
    def rank(self) -> int | None:
        return self.attn_dp_rank if self.data_parallel_rank is None else self.data_parallel_rank


class _Stored(msgspec.Struct):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int | list[int]]
    block_size: int
    lora_id: int | str | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _Removed(msgspec.Struct):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


def decode(payload: bytes, *, max_bytes: int = MAX_PAYLOAD) -> EventBatch:
    """Read one payload. Raises DecodeError when it is too large, damaged or of another shape."""
    if len(payload) > max_bytes:
        raise DecodeError(f"a payload of {len(payload)} bytes is over the limit of {max_bytes}")
    try:
        told = msgspec.msgpack.decode(payload)
        # An array has no name for what may come behind the rank one day.
        batch = _shaped(told[:3] if isinstance(told, list) else told, _Batch)
        events = [_event(item) for item in batch.events]
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        # The text of msgspec's errors names places and types, never values.
        raise DecodeError(f"KV events can't be read: {error}") from error
    known = tuple(event for event in events if event is not None)
    return EventBatch(batch.ts, known, batch.rank, len(events) - len(known))


def split_frames(parts: Sequence[bytes]) -> Frame:
    """Take a live message apart. Raises DecodeError unless it has three frames and a sequence."""
    if len(parts) != 3:
        raise DecodeError(f"a message has 3 frames, got {len(parts)}")
    topic, seq, payload = parts
    if len(seq) != 8:
        raise DecodeError(f"a sequence has 8 bytes, got {len(seq)}")
    number = int.from_bytes(seq, "big", signed=True)
    if number < 0:
        raise DecodeError(f"a live message has no sequence {number}")
    return Frame(topic, number, payload)


def _event(item: Any) -> Event | None:
    is_array = isinstance(item, list)
    match item:
        case [str(name), *_] | {"type": str(name)}:
            pass
        case _:
            raise DecodeError("an event is an array or a map with a name")
    if name == "BlockStored":
        stored = _shaped(item[1:] if is_array else item, _Stored)
        parent = stored.parent_block_hash
        if stored.block_size < 0:
            raise DecodeError(f"a block size of {stored.block_size}")
        return BlockStored(
            block_hashes=tuple(stored.block_hashes),
            parent_block_hash=None if is_array and parent == 0 else parent,
            tokens=_tokens(stored.token_ids),
            block_size=stored.block_size,
            lora_id=stored.lora_id,
            medium=stored.medium,
            lora_name=stored.lora_name,
            extra_keys=None if stored.extra_keys is None else tuple(stored.extra_keys),
            group_idx=stored.group_idx,
            kv_cache_spec_kind=stored.kv_cache_spec_kind,
        )
    if name == "BlockRemoved":
        removed = _shaped(item[1:] if is_array else item, _Removed)
        return BlockRemoved(
            block_hashes=tuple(removed.block_hashes),
            medium=removed.medium,
            group_idx=removed.group_idx,
        )
    return AllBlocksCleared() if name == "AllBlocksCleared" else None


def _tokens(ids: list[int | list[int]]) -> bytes:
    if ids and isinstance(ids[0], list):
        return pack([one if isinstance(one, int) else one[0] for one in ids if one != []])
    return pack(cast("list[int]", ids))


def split_reply(parts: Sequence[bytes]) -> Frame | None:
    """Take one message of a replay apart; None is its end. Raises DecodeError as `split_frames`.

    Engines write `["", seq, payload]` or `["", topic, seq, payload]`.
    """
    match parts:
        case [b"", seq, payload]:
            topic = b""
        case [b"", topic, seq, payload]:
            pass
        case _:
            raise DecodeError(f"a message of a replay has 3 or 4 frames, got {len(parts)}")
    return None if seq == END_OF_REPLAY else split_frames([topic, seq, payload])


_T = TypeVar("_T", bound=msgspec.Struct)


def _shaped(value: Any, shape: type[_T]) -> _T:
    """Read a map, or an array of the same fields in order, as `shape`."""
    if isinstance(value, list):
        value = dict(zip(shape.__struct_fields__, value, strict=False))
    # `bytes` as a builtin type: a hash that is text isn't base64 of anything.
    return msgspec.convert(value, shape, builtin_types=(bytes,))
