"""Pickers and sidecars of two releases beside each other: each understands what the other says."""

import json
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from epp._pb import state_pb2 as pb
from epp.seals import SealKeys
from epp.state import records, sums
from epp.state.store import memory
from sidecar.transfer.legs import LegKeys
from tests.contract import wire

RECORDED = [json.loads(file.read_text()) for file in sorted(wire.RECORDINGS.glob("*.json"))]
each_release = pytest.mark.parametrize(
    "release", RECORDED, ids=[one["release"] for one in RECORDED]
)
MESSAGES = {
    "Record": pb.Record,
    "Record of a snapshot": pb.Record,
    "ReplicaSums": pb.ReplicaSums,
    "Hello": pb.Hello,
    "Welcome": pb.Welcome,
}
_LATER = bytes.fromhex("f2ff7f03616263")
"""Field 262142, of a later release."""


def _bytes(release: Any, name: str) -> bytes:
    return bytes.fromhex(release["said"][name])


def _schema(release: Any) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(bytes.fromhex(release["schema"]))


def test_this_release_is_recorded() -> None:
    assert wire.RELEASE in {one["release"] for one in RECORDED}


@each_release
def test_what_a_release_says_is_understood(release: Any) -> None:
    assert records.parse(_bytes(release, "Record")) == wire.CHANGE
    assert records.parse(_bytes(release, "Record of a snapshot")) == wire.SNAPSHOT
    assert sums.parse(_bytes(release, "ReplicaSums")) == wire.SUMS
    hello = pb.Hello.FromString(_bytes(release, "Hello"))
    assert (hello.version, hello.nonce) == (memory.VERSION, wire.NONCE)
    assert hello.endpoint == str(wire.LIFE.endpoint)
    welcome = pb.Welcome.FromString(_bytes(release, "Welcome"))
    assert (welcome.version, welcome.refused, welcome.writers) == (memory.VERSION, "", 2)


@each_release
def test_proofs_of_a_release_are_believed_and_ours_are_the_same(release: Any) -> None:
    """The two sides hold one key: what either makes the other one has to make as well."""
    seal, leg = release["said"]["seal"], release["said"]["leg"]
    assert SealKeys(wire.KEY).error(seal, wire.NAMED, wire.NOW_S) is None
    assert LegKeys(wire.KEY).error(leg, wire.LEG, wire.NOW_S) is None
    assert wire.said()["seal"] == seal
    assert wire.said()["leg"] == leg


@each_release
def test_blocks_have_the_names_that_a_release_gave_them(release: Any) -> None:
    """Another name would be no error, and every match a miss."""
    assert [str(key) for key in wire.block_keys()] == release["block_keys"]


@each_release
@pytest.mark.parametrize("name", MESSAGES)
def test_what_we_say_is_understood_by_a_release(release: Any, name: str) -> None:
    """Read by the release's own schema: every field that it knows has the value that we meant."""
    pool = DescriptorPool()
    file = _schema(release)
    pool.Add(file)
    kind = MESSAGES[name]
    of_release = GetMessageClass(pool.FindMessageTypeByName(kind.DESCRIPTOR.full_name))
    ours = bytes.fromhex(wire.said()[name])
    read = of_release.FromString(ours)
    then = of_release.FromString(_bytes(release, name))
    assert MessageToDict(read) == MessageToDict(then)


@each_release
def test_no_field_changes_its_number_or_its_kind(release: Any) -> None:
    assert _fields(_schema(release)).items() <= _fields(wire.schema()).items()


def _fields(file: FileDescriptorProto) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Number, type and label, by message and field; of messages within messages, too."""
    found: dict[tuple[str, str], tuple[int, int, int]] = {}
    waiting = [(message.name, message) for message in file.message_type]
    while waiting:
        name, message = waiting.pop()
        waiting += [(f"{name}.{inner.name}", inner) for inner in message.nested_type]
        for field in message.field:
            found[name, field.name] = (field.number, field.type, field.label)
    for enum in file.enum_type:
        found |= {(enum.name, value.name): (value.number, 0, 0) for value in enum.value}
    return found


def test_fields_of_a_later_release_are_passed_over() -> None:
    said = wire.said()
    assert records.parse(bytes.fromhex(said["Record"]) + _LATER) == wire.CHANGE
    assert sums.parse(bytes.fromhex(said["ReplicaSums"]) + _LATER) == wire.SUMS
    hello = pb.Hello.FromString(bytes.fromhex(said["Hello"]) + _LATER)
    assert hello.version == memory.VERSION


def test_a_release_that_cannot_be_understood_says_so_by_its_version() -> None:
    later = pb.Record.FromString(bytes.fromhex(wire.said()["Record"]))
    later.version += 1
    with pytest.raises(records.RecordError) as refused:
        records.parse(later.SerializeToString())
    assert refused.value.kind == "version"
