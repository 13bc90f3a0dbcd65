"""Decoding of KV events: real recordings, every layout, hashes, damage."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.errors import EppError
from epp.state.blocks import pack
from epp.state.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    DecodeError,
    decode,
    split_frames,
)
from tests.fakes.kv_publisher import CLEARED_MAP, as_array, payload, stored_map

DATA = Path(__file__).parent.parent / "data" / "kv_events"
RECORDED = json.loads((DATA / "vllm_0.32.0.json").read_text())
ARRAY_FORM = json.loads((DATA / "vllm_0.17.1_array_form.json").read_text())


def real_hash(value: Any) -> Any:
    return bytes.fromhex(value["__bytes_hex__"]) if isinstance(value, dict) else value


@pytest.mark.parametrize("message", RECORDED, ids=lambda m: f"{m['source'][:30]}-{m['seq']}")
def test_what_real_vllm_sent_is_read_in_full(message: dict[str, Any]) -> None:
    batch = decode(bytes.fromhex(message["payload_hex"]))
    ts, events, rank = message["decoded"]
    assert (batch.ts, batch.dp_rank, batch.skipped) == (ts, rank, 0)
    assert len(batch.events) == len(events)
    for event, told in zip(batch.events, events, strict=True):
        assert type(event).__name__ == told["type"]
        match event:
            case BlockStored():
                assert list(event.block_hashes) == [real_hash(h) for h in told["block_hashes"]]
                assert event.parent_block_hash == real_hash(told["parent_block_hash"])
                assert event.tokens == pack(told["token_ids"])
                assert event.block_size == told["block_size"]
                assert list(event.extra_keys or ()) == told["extra_keys"]
                assert event.medium == told["medium"]
                assert event.group_idx == told["group_idx"]
                assert event.kv_cache_spec_kind == told["kv_cache_spec_kind"]
            case BlockRemoved():
                assert list(event.block_hashes) == [real_hash(h) for h in told["block_hashes"]]
                assert (event.medium, event.group_idx) == (told["medium"], told["group_idx"])


def test_the_array_form_of_old_vllm_is_read_in_full() -> None:
    batch = decode(bytes.fromhex(ARRAY_FORM["payload_hex"]))
    assert batch.ts == 1.5
    assert batch.events == (
        BlockStored(
            block_hashes=(11, 22),
            parent_block_hash=None,
            tokens=pack(range(8)),
            block_size=4,
            medium="GPU",
            extra_keys=(None, None),
        ),
        BlockRemoved(block_hashes=(11,), medium="GPU"),
        AllBlocksCleared(),
    )


def test_a_batch_may_leave_out_the_rank_or_be_a_map() -> None:
    events = [CLEARED_MAP]
    for shape in ([2, events], [2.0, events, None], {"ts": 2, "events": events}):
        batch = decode(msgspec.msgpack.encode(shape))
        assert (batch.ts, batch.events, batch.dp_rank) == (2.0, (AllBlocksCleared(),), None)
    named = {"ts": 2, "events": events, "data_parallel_rank": 3, "later": 1}
    assert decode(msgspec.msgpack.encode(named)).dp_rank == 3


def test_the_form_of_sglang_is_read_in_full() -> None:
    told = ["BlockStored", [-5], None, [[7, 8], [8, 9]], 2, None, "CPU_PINNED"]
    for batch in ([1.0, [told], 1], {"ts": 1.0, "events": [told], "attn_dp_rank": 1}):
        found = decode(msgspec.msgpack.encode(batch))
        assert found.dp_rank == 1
        (event,) = found.events
        assert isinstance(event, BlockStored)
        assert event.tokens == pack([7, 8])
        assert (event.block_hashes, event.medium) == ((-5,), "CPU_PINNED")


def test_what_comes_behind_the_rank_of_an_array_is_passed_over() -> None:
    assert decode(msgspec.msgpack.encode([1.0, [], 2, "later"])).dp_rank == 2


def test_parent_zero_means_none_only_in_the_array_form() -> None:
    event = stored_map([1], [1, 2], 2, parent=0)
    (array,) = decode(payload([as_array(event)])).events
    (mapped,) = decode(payload([event])).events
    assert isinstance(array, BlockStored)
    assert isinstance(mapped, BlockStored)
    assert array.parent_block_hash is None
    assert mapped.parent_block_hash == 0


def test_all_that_tells_blocks_apart_is_kept() -> None:
    told = stored_map(
        [1],
        [1, 2],
        2,
        lora_id=4,
        lora_name="poet",
        medium="CPU",
        extra_keys=[["poet", ["image", 3]]],
        group_idx=2,
        kv_cache_spec_kind="sliding_window",
    )
    (event,) = decode(payload([told])).events
    assert isinstance(event, BlockStored)
    assert (event.lora_id, event.lora_name, event.medium) == (4, "poet", "CPU")
    assert (event.group_idx, event.kv_cache_spec_kind) == (2, "sliding_window")
    assert event.extra_keys == (["poet", ["image", 3]],)


def test_a_payload_over_the_limit_is_refused_and_one_at_the_limit_is_read() -> None:
    data = payload([CLEARED_MAP])
    assert decode(data, max_bytes=len(data)).events
    with pytest.raises(DecodeError, match="over the limit"):
        decode(data, max_bytes=len(data) - 1)


@pytest.mark.parametrize(
    "shape",
    [
        None,
        7,
        [],
        [1.0],
        [1.0, 5],
        ["now", []],
        [1.0, [], "zero"],
        {"ts": 1.0},
        [1.0, [5]],
        [1.0, [[]]],
        [1.0, [{}]],
        [1.0, [{"type": 5}]],
        [1.0, [["BlockStored", [1], None, [1]]]],
        [1.0, [["BlockStored", [1], None, [-1], 1]]],
        [1.0, [["BlockStored", [1], None, [2**32], 1]]],
        [1.0, [["BlockStored", [1], None, [1], -1]]],
        [1.0, [["BlockStored", [1.5], None, [1], 1]]],
        [1.0, [["BlockStored", [True], None, [1], 1]]],
        [1.0, [["BlockStored", ["abcd"], None, [1], 1]]],
        [1.0, [["BlockRemoved"]]],
        [1.0, [{"type": "BlockRemoved", "block_hashes": 5}]],
        [1.0, [{"type": "BlockRemoved", 7: 5}]],
    ],
)
def test_a_batch_of_another_shape_is_an_error_that_names_no_value(shape: Any) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(msgspec.msgpack.encode(shape))
    assert isinstance(caught.value, EppError)
    assert "abcd" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\xa1\xff",
    ],
    ids=["empty", "reserved", "endless array", "endless map", "deep", "not UTF-8"],
)
def test_hostile_bytes_are_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


def test_frames_are_topic_sequence_and_payload() -> None:
    frame = split_frames([b"kv@pod", (7).to_bytes(8, "big"), b"data"])
    assert (frame.topic, frame.seq, frame.payload) == (b"kv@pod", 7, b"data")


def test_the_end_mark_of_a_replay_is_no_live_message() -> None:
    with pytest.raises(DecodeError, match="no sequence -1"):
        split_frames([b"", b"\xff" * 8, b""])
