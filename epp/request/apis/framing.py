"""The one message of a gRPC call: a flag, four octets of length, and that many octets.

The length is what a client says; nothing is read beyond what it sent (fault G16).
"""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from epp.errors import BadRequest

HEAD_BYTES = 5
NOT_A_CALL = "the body is not the message of a gRPC call: "

_M = TypeVar("_M", bound=Message)


def message(body: bytes) -> bytes | None:
    """The first message of a call's body; None for a compressed one. Raises BadRequest."""
    if len(body) < HEAD_BYTES:
        raise BadRequest(f"{NOT_A_CALL}it has no head of {HEAD_BYTES} octets")
    flag, size = body[0], int.from_bytes(body[1:HEAD_BYTES])
    if flag > 1:
        raise BadRequest(f"{NOT_A_CALL}its flag is neither 0 nor 1")
    if size > len(body) - HEAD_BYTES:
        raise BadRequest(f"{NOT_A_CALL}it is shorter than its head says")
    return None if flag else body[HEAD_BYTES : HEAD_BYTES + size]


def decoded(kind: type[_M], data: bytes) -> _M:
    """Raises BadRequest for what is no such message."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise BadRequest(f"{NOT_A_CALL}its fields cannot be read") from None
