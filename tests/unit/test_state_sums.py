"""Absolute sums of a replica's reservations, as bytes."""

import pytest

from epp._pb import state_pb2 as pb
from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.sums import MAX_KEYS, MAX_SUMS, EndpointSum, ReplicaSums, SumsError, encode, parse

LIFE = Incarnation(EndpointId(PoolId("default/pool"), "pod-a", 8000), 1700)


def with_keys(*counts: int) -> bytes:
    message = pb.ReplicaSums(version=1, replica="r")
    for count in counts:
        message.sums.add(endpoint=str(LIFE.endpoint), incarnation=1700, keys=bytes(8 * count))
    return message.SerializeToString()


def test_sums_survive_the_wire() -> None:
    sums = ReplicaSums(
        "picker-1-77",
        (
            EndpointSum(
                incarnation=LIFE,
                requests=3,
                pending=2,
                prefill_tokens=9000,
                decode_blocks=40,
                keys=(1, 2**64 - 1),
            ),
        ),
    )
    assert parse(encode(sums)) == sums


def test_no_more_endpoints_are_said_than_are_read() -> None:
    many = ReplicaSums("r", (EndpointSum(incarnation=LIFE, requests=1),) * (MAX_SUMS + 1))
    assert len(parse(encode(many)).sums) == MAX_SUMS


def test_no_more_keys_are_said_than_are_read() -> None:
    most = EndpointSum(incarnation=LIFE, keys=tuple(range(MAX_KEYS - 1)))
    found = parse(encode(ReplicaSums("r", (most, most))))
    assert [len(one.keys) for one in found.sums] == [MAX_KEYS - 1, 1]


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xff",
        pb.ReplicaSums(version=2, replica="r").SerializeToString(),
        pb.ReplicaSums(version=1).SerializeToString(),
        pb.ReplicaSums(version=1, replica="r" * 254).SerializeToString(),
        bytes((1 << 21) + 1),
        with_keys(MAX_KEYS // 2, MAX_KEYS // 2 + 1),
    ],
)
def test_what_is_no_sum_is_refused(bad: bytes) -> None:
    with pytest.raises(SumsError):
        parse(bad)


def test_an_endpoint_that_is_none_is_left_out() -> None:
    message = pb.ReplicaSums(version=1, replica="r")
    message.sums.add(endpoint="nonsense", incarnation=1, requests=1)
    message.sums.add(endpoint=str(LIFE.endpoint), incarnation=2**53, requests=1)
    message.sums.add(endpoint=str(LIFE.endpoint), incarnation=1700, requests=1, keys=b"1234567")
    message.sums.add(endpoint=str(LIFE.endpoint), incarnation=1700, requests=1)
    assert parse(message.SerializeToString()).sums == (EndpointSum(incarnation=LIFE, requests=1),)
