"""What one picker replica has put on all endpoints: absolute sums and keys, never increments.

A message that is lost heals with the next; the sums of a replica that died disappear with their
lease. `parse` believes nothing that it cannot check.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from epp._pb import state_pb2 as pb
from epp.errors import EppError
from epp.framework import EndpointId, Incarnation

from .keys import SIZE, PackedKeys, packed

VERSION = 1
LEASE_S = 2.0
"""How long published sums are believed; publish several times within it."""
MAX_SUMS = 10_000
"""Endpoints in one message; a replica with more says the first ones."""
MAX_KEYS = 4096
"""Keys in one message, over all endpoints."""
MAX_BYTES = 1 << 21
MAX_REPLICA = 253
"""Characters of a replica's name."""


class SumsError(EppError):
    """Sums of a later version, or not sums at all."""

    reason = "sums"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSum:
    """Open reservations of one replica on one life of one engine."""

    incarnation: Incarnation
    requests: int = 0
    pending: int = 0
    """Of these, the ones whose first token was not seen; never more than there are."""
    prefill_tokens: int = 0
    """Uncached prompt tokens that are still to be computed."""
    decode_blocks: int = 0
    keys: Sequence[int] = ()
    """Some of the own block keys that it predicts there; see `replicas.own`."""


@dataclass(frozen=True, slots=True)
class ReplicaSums:
    """Endpoints without reservations and predictions are left out."""

    replica: str
    """Unique to one life of one replica, 1 to 253 characters."""
    sums: tuple[EndpointSum, ...] = ()


def encode(sums: ReplicaSums) -> bytes:
    """Serialise, the first `MAX_SUMS` endpoints and `MAX_KEYS` keys at most."""
    message = pb.ReplicaSums(version=VERSION, replica=sums.replica)
    room = MAX_KEYS
    for one in sums.sums[:MAX_SUMS]:
        message.sums.add(
            endpoint=str(one.incarnation.endpoint),
            incarnation=one.incarnation.start_ms,
            requests=one.requests,
            pending=one.pending,
            prefill_tokens=one.prefill_tokens,
            decode_blocks=one.decode_blocks,
            keys=packed(one.keys[:room]),
        )
        room -= min(room, len(one.keys))
    return message.SerializeToString()


def parse(data: bytes) -> ReplicaSums:
    """Raises SumsError. Endpoints that are none are left out."""
    message = pb.ReplicaSums()
    if len(data) > MAX_BYTES:
        raise SumsError(f"{len(data)} bytes of sums, {MAX_BYTES} are allowed")
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise SumsError("not a ReplicaSums message") from error
    if message.version != VERSION:
        raise SumsError(f"sums of version {message.version}, this reader knows {VERSION}")
    if not 0 < len(message.replica) <= MAX_REPLICA:
        raise SumsError("sums without a replica's name")
    if sum(len(one.keys) for one in message.sums) > MAX_KEYS * SIZE:
        raise SumsError(f"more than {MAX_KEYS} keys of predicted blocks")
    found = (_sum(one) for one in message.sums[:MAX_SUMS])
    return ReplicaSums(message.replica, tuple(one for one in found if one is not None))


def _sum(one: pb.ReplicaSums.Sum) -> EndpointSum | None:
    try:
        endpoint = EndpointId.parse(one.endpoint)
    except ValueError:
        return None
    if one.incarnation >= 2**53 or len(one.endpoint) > 1024 or len(one.keys) % SIZE:
        return None
    return EndpointSum(
        incarnation=Incarnation(endpoint, one.incarnation),
        requests=one.requests,
        pending=min(one.pending, one.requests),
        prefill_tokens=one.prefill_tokens,
        decode_blocks=one.decode_blocks,
        keys=PackedKeys(one.keys) if one.keys else (),
    )
