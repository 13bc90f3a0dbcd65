"""State records: what is written is read back, and nothing else is believed."""

import math
import random
from collections import Counter

import pytest

from epp._pb import state_pb2 as pb
from epp.framework import EndpointId, Incarnation, Lora, PoolId
from epp.state.records import (
    MAX_BYTES,
    MAX_KEYS,
    MAX_TIERS,
    BlockChange,
    Done,
    EngineStatus,
    FirstToken,
    Outcome,
    Record,
    RecordError,
    TierChange,
    encode,
    parse,
)
from epp.state.reports import MAX_ADAPTERS, MAX_NAME, LoadReport

LIFE = Incarnation(EndpointId(PoolId("ns/p"), "default/pod", 8000), 1_796_039_120_280)


def record(**fields: object) -> Record:
    return Record(**{"incarnation": LIFE, "nonce": 2**64 - 1, "seq": 1, **fields})


def message(**fields: object) -> pb.Record:
    known = {"version": 1, "endpoint": str(LIFE.endpoint), "incarnation": 1, "nonce": 1, "seq": 1}
    return pb.Record(**{**known, **fields})


def kind(data: bytes) -> str:
    with pytest.raises(RecordError) as caught:
        parse(data)
    assert caught.value.kind in RecordError.KINDS
    return caught.value.kind


def test_a_full_record_survives_the_wire() -> None:
    full = record(
        blocks=BlockChange(
            stored=(1, 2**64 - 1),
            removed=(3,),
            reset=True,
            tiers=(TierChange("CPU", (1,), (4,)), TierChange("DISK", (5,))),
        ),
        status=EngineStatus(
            report=LoadReport(
                waiting=0, running=2, kv_usage=0.5, total_blocks=100, block_tokens=32
            ),
            ready=True,
            events=True,
        ),
        first_tokens=(FirstToken("d1", 0.25),),
        done=(
            Done(
                decision_id="d2",
                outcome=Outcome.OK,
                status=200,
                prompt_tokens=10,
                cached_tokens=0,
                completion_tokens=3,
                ttft_s=0.1,
                predicted_cached_tokens=64,
                duration_s=1.5,
            ),
            Done(decision_id="d3", outcome=Outcome.CLIENT_GONE),
        ),
    )
    assert parse(encode(full)) == full
    assert full.reset


def test_tiers_count_among_the_keys_and_are_bounded() -> None:
    tiers = tuple(TierChange(f"T{i}", (i,)) for i in range(MAX_TIERS + 1))
    change = BlockChange(stored=(9,), tiers=tiers)
    assert change.keys == MAX_TIERS + 2
    parsed = parse(encode(record(blocks=change))).blocks
    assert parsed is not None
    assert parsed.tiers == tiers[:MAX_TIERS]
    full = BlockChange(tiers=(TierChange("CPU", tuple(range(MAX_KEYS + 1))),))
    with pytest.raises(ValueError, match="block keys at most"):
        encode(record(blocks=full))


def test_keys_are_read_from_a_packed_list_of_numbers_and_never_in_pieces() -> None:
    """A `repeated fixed64`, as other writers of the protocol may declare the lists."""
    numbers = bytes([1, *[0] * 7, *[255] * 8])
    delta = b"\x12\x10" + numbers  # field 2 of BlockDelta, length-delimited
    head = message().SerializeToString()
    parsed = parse(head + b"\x32" + bytes([len(delta)]) + delta).blocks
    assert parsed is not None
    assert parsed.stored == (1, 2**64 - 1)
    assert [parsed.stored[1], *parsed.stored[:1]] == [2**64 - 1, 1]
    assert kind(message(blocks=pb.BlockDelta(removed=bytes(9))).SerializeToString()) == "damaged"


@pytest.mark.parametrize("name", ["", "T" * 65])
def test_a_tier_without_a_usable_name_is_not_read(name: str) -> None:
    blocks = pb.BlockDelta(tiers=[pb.TierDelta(tier=name, stored=bytes(8))])
    parsed = parse(message(blocks=blocks).SerializeToString()).blocks
    assert parsed is not None
    assert parsed.tiers == ()


def test_unknown_stays_unknown_and_zero_stays_zero() -> None:
    status = EngineStatus(report=LoadReport(waiting=0), ready=True)
    parsed = parse(encode(record(status=status))).status
    assert parsed == status
    assert parsed is not None
    assert parsed.report.running is None
    assert parse(encode(record())).status is None


def test_fields_of_a_later_version_are_passed_over() -> None:
    data = encode(record(done=(Done(decision_id="d"),)))
    assert parse(data + b"\xfa\x3f\x03new") == parse(data)


def test_a_word_of_a_later_version_is_unknown() -> None:
    data = message(done=[pb.Done(decision_id="d", outcome=77)]).SerializeToString()
    assert parse(data).done[0].outcome is Outcome.UNKNOWN


def test_each_kind_of_bad_record_is_refused() -> None:
    assert kind(b"\xff\xff\xff") == "damaged"
    assert kind(b"\x12\x02\xff\xfe") == "damaged"
    assert kind(b"") == "version"
    assert kind(message(version=2).SerializeToString()) == "version"
    assert kind(message(endpoint="p|a").SerializeToString()) == "endpoint"
    assert kind(message(endpoint="p||80").SerializeToString()) == "endpoint"
    assert kind(message(endpoint="p|a|0").SerializeToString()) == "endpoint"
    assert kind(message(endpoint="p|a|65536").SerializeToString()) == "endpoint"
    assert kind(message(endpoint="p|" + "a" * 1100 + "|1").SerializeToString()) == "endpoint"
    assert kind(message(seq=0).SerializeToString()) == "bounds"
    assert kind(message(incarnation=2**60).SerializeToString()) == "bounds"
    many = [pb.FirstToken(decision_id="d")] * 10_001
    assert kind(message(first_tokens=many).SerializeToString()) == "bounds"
    assert kind(b"x" * (MAX_BYTES + 1)) == "too-large"


def test_numbers_inside_are_checked() -> None:
    data = message(
        load=pb.Load(kv_usage=math.nan, waiting=2**32 - 1, ready=True),
        first_tokens=[pb.FirstToken(decision_id="d", ttft_s=math.inf)],
        done=[
            pb.Done(decision_id="d", status=70_000, duration_s=-1, ttft_s=math.nan),
            pb.Done(decision_id="x" * 129),
            pb.Done(),
        ],
    ).SerializeToString()
    parsed = parse(data)
    assert parsed.status is not None
    assert parsed.status.report == LoadReport()
    assert parsed.first_tokens == (FirstToken("d", None),)
    assert parsed.done == (Done(decision_id="d"),)


def test_the_largest_state_that_is_allowed_fits_a_record() -> None:
    stored = tuple(range(2**63, 2**63 + MAX_KEYS))
    full = record(blocks=BlockChange(stored=stored, reset=True))
    assert parse(encode(full)) == full
    with pytest.raises(ValueError, match="at most"):
        encode(record(blocks=BlockChange(stored=stored, removed=(1,))))
    with pytest.raises(ValueError, match="bytes at most"):
        encode(record(done=tuple(Done(decision_id="d" * 128) for _ in range(10_000))))


def test_random_bytes_never_raise_anything_else() -> None:
    chance = random.Random(7)
    good = encode(record(blocks=BlockChange(stored=(1, 2, 3)), done=(Done(decision_id="d"),)))
    said = Counter[str]()
    for _ in range(3_000):
        data = bytearray(good if chance.random() < 0.7 else chance.randbytes(60))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            read = parse(bytes(data[: chance.randrange(1, len(data) + 1)]))
        except RecordError as error:
            said[error.kind] += 1
        else:
            said["read"] += 1
            assert parse(encode(read)) == read
    assert said.keys() >= {"read", "damaged", "endpoint", "version"}


def test_adapters_survive_the_wire_and_their_absence_too() -> None:
    lora = Lora(running=frozenset("ab"), waiting=frozenset("c"), most=2, base="m")
    for adapters in (lora, Lora(), None):
        status = EngineStatus(report=LoadReport(lora=adapters))
        assert parse(encode(record(status=status))).status == status


def test_adapters_beyond_all_measure_are_not_kept() -> None:
    many = [f"adapter-{n:05}" for n in range(MAX_ADAPTERS + 5)]
    load = pb.Load(lora=pb.Lora(running=[*many, "x" * (MAX_NAME + 1), ""], most=2**32 - 1))
    status = parse(message(load=load).SerializeToString()).status
    assert status is not None
    lora = status.report.lora
    assert lora is not None
    assert lora.running == frozenset(many[:MAX_ADAPTERS])
    assert lora.most == 0
