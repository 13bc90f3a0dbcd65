"""The same events in any layout are the same values, and no bytes break the decoder."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from epp.state.blocks import TOKEN_BYTES
from epp.state.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    DecodeError,
    EventBatch,
    decode,
    split_frames,
)
from tests.fakes.kv_publisher import CLEARED_MAP, as_array, payload, removed_map, stored_map

hashes = st.one_of(
    st.integers(-(2**63), -1), st.integers(1, 2**64 - 1), st.binary(min_size=1, max_size=32)
)


@st.composite
def stored_events(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(1, 4))
    names = draw(st.lists(hashes, max_size=4))
    count = size * len(names)
    tokens = draw(st.lists(st.integers(0, 2**32 - 1), min_size=count, max_size=count))
    optional: dict[str, Any] = {
        "lora_id": draw(st.none() | st.integers(1, 9)),
        "medium": draw(st.sampled_from([None, "GPU", "CPU"])),
        "lora_name": draw(st.none() | st.text(max_size=4)),
        "extra_keys": draw(st.none() | st.just([None] * len(names))),
        "group_idx": draw(st.none() | st.integers(0, 3)),
        "kv_cache_spec_kind": draw(st.sampled_from([None, "full_attention"])),
    }
    left_out = draw(st.sets(st.sampled_from(sorted(optional))))
    kept = {name: value for name, value in optional.items() if name not in left_out}
    return stored_map(names, tokens, size, parent=draw(st.none() | hashes), **kept)


events = st.one_of(
    stored_events(),
    st.builds(removed_map, st.lists(hashes, max_size=4), medium=st.sampled_from([None, "GPU"])),
    st.just(CLEARED_MAP),
)


@given(st.lists(events, max_size=5))
def test_maps_arrays_and_arrays_with_later_fields_decode_alike(told: list[dict[str, Any]]) -> None:
    expected = decode(payload(told))
    assert decode(payload([as_array(event) for event in told])) == expected
    assert decode(payload([as_array(event, extra=[None, {"a": 1}]) for event in told])) == expected
    assert decode(payload([{**event, "later": [1]} for event in told])) == expected
    as_map = {"ts": 1.0, "events": told, "data_parallel_rank": 0}
    assert decode(msgspec.msgpack.encode(as_map)) == expected
    unknown: list[Any] = [["Novel", 1], {"type": "Novel"}]
    mixed = decode(payload([*unknown, *told]))
    assert (mixed.events, mixed.skipped) == (expected.events, 2)


def read(data: bytes) -> EventBatch | None:
    """None: refused."""
    try:
        return decode(data)
    except DecodeError:
        return None


def is_sound(batch: EventBatch) -> bool:
    """All of it is of the types that it says, and stored tokens are of whole bytes."""
    return isinstance(batch.ts, float) and all(
        len(event.tokens) % TOKEN_BYTES == 0 and event.block_size >= 0
        if isinstance(event, BlockStored)
        else isinstance(event, BlockRemoved | AllBlocksCleared)
        for event in batch.events
    )


@given(st.binary(max_size=200))
def test_random_bytes_decode_or_are_refused(data: bytes) -> None:
    batch = read(data)
    assert batch is None or is_sound(batch)


@given(st.lists(events, min_size=1, max_size=3), st.data())
def test_flipped_and_cut_bytes_decode_or_are_refused(
    told: list[dict[str, Any]], data: st.DataObject
) -> None:
    good = bytearray(payload(told))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(place, len(good)))
    batch = read(bytes(good[:end]))
    assert batch is None or is_sound(batch)
    assert batch is None or end > place, "what is cut off is no batch"


@given(st.lists(st.binary(max_size=10), max_size=5))
def test_random_frames_split_or_are_refused(parts: list[bytes]) -> None:
    try:
        frame = split_frames(parts)
    except DecodeError:
        return
    assert [frame.topic, frame.seq.to_bytes(8, "big"), frame.payload] == parts
