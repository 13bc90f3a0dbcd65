"""Build the serialised replies of an ext_proc stream.

The bytes are put together by hand where a request or a token pays for it: a protobuf message is
the concatenation of its fields, so fixed parts are constants, parts that depend on the endpoint
alone are cached. Tests compare every shape with what the generated code makes of the same fields.
`python -m tests.bench.echo` measures what a token costs.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import isfinite
from struct import pack

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.errors import Refusal

CONTINUE_REQUEST_HEADERS = b"\x0a\x00"
CONTINUE_REQUEST_BODY = b"\x1a\x00"
CONTINUE_RESPONSE_HEADERS = b"\x12\x00"
CONTINUE_RESPONSE_BODY = b"\x22\x00"
REQUEST_TRAILERS = b"\x2a\x00"
RESPONSE_TRAILERS = b"\x32\x00"

REQUEST_HEADERS = b"\x0a"
"""Tag of a routing reply in the modes that answer the headers; see `routing`."""
REQUEST_BODY = b"\x1a"
RESPONSE_BODY = b"\x22"

RESPONSE_HEADERS = b"\x12"

RETRY_AFTER_S = 1
"""What a client is told with 429 and 503: queues of inference engines move within a second, and
another picker or endpoint takes over as fast. Longer waits are the client's own backoff."""

MAX_SCORES = 500
"""Endpoints whose scores a gateway is told, best first: more would make too large a message."""

MAX_HEADER_VALUE = 4096
"""Longest header value that we set, bytes."""

_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE = re.compile(rf"[\x20-\x7e]{{1,{MAX_HEADER_VALUE}}}")
_NEVER_SET = frozenset((*protocol.HOP_BY_HOP_HEADERS, "content-length", "host"))
_END = b"\x10\x01"


def varint(value: int) -> bytes:
    """Protobuf's base-128 number; `value` is not negative."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(tag: bytes, payload: bytes) -> bytes:
    return b"".join((tag, varint(len(payload)), payload))


def settable(name: str, value: str) -> bool:
    """Whether a header is safe to set: a gateway drops all mutations for one bad one (A23).

    Hop-by-hop headers, framing and pseudo headers are never ours to set (A04, A05).
    """
    return (
        _NAME.fullmatch(name) is not None
        and name not in _NEVER_SET
        and _VALUE.fullmatch(value) is not None
    )


@lru_cache(maxsize=4096)
def set_header(name: str, value: str) -> bytes:
    """One `set_headers` entry: overwrite, `raw_value` only (A22)."""
    header = _field(b"\x0a", name.encode()) + _field(b"\x1a", value.encode())
    return _field(b"\x0a", _field(b"\x0a", header) + b"\x18\x02")


def _remove_header(name: str) -> bytes:
    return _field(b"\x12", name.encode())


_REMOVE_ROUTING = b"".join(
    map(_remove_header, (*protocol.ROUTING_HEADERS, *protocol.GATEWAY_HEADERS))
)
_REMOVE_LENGTH = _remove_header("content-length")


def _entry(key: str, value: bytes) -> bytes:
    """One field of a google.protobuf.Struct; `value` is a serialised Value."""
    return _field(b"\x0a", _field(b"\x0a", key.encode()) + _field(b"\x12", value))


def _struct_value(entries: bytes) -> bytes:
    return _field(b"\x2a", entries)


@lru_cache(maxsize=4096)
def _destination_entry(destination: str) -> bytes:
    return _entry(protocol.DESTINATION, _field(b"\x1a", destination.encode()))


def _scores_entry(scores: Sequence[tuple[str, float]]) -> bytes:
    """The scores by endpoint; what is no finite number is left out: JSON knows none."""
    best = sorted((each for each in scores if isfinite(each[1])), key=lambda each: -each[1])
    entries = (
        _entry(address, b"\x11" + pack("<d", score)) for address, score in sorted(best[:MAX_SCORES])
    )
    return _entry(protocol.DESTINATION_SCORES, _struct_value(b"".join(entries)))


def _metadata(entries: bytes) -> bytes:
    """`dynamic_metadata` with these entries in the load balancer's namespace."""
    return _field(b"\x42", _entry(protocol.LB_NAMESPACE, _struct_value(entries)))


@lru_cache(maxsize=4096)
def _destination_metadata(destination: str) -> bytes:
    """`dynamic_metadata` with the same bytes as the header (A28)."""
    return _metadata(_destination_entry(destination))


def routing(
    reply: bytes,
    destination: str | None,
    set_headers: Iterable[tuple[str, str]],
    remove_headers: Iterable[str],
    *,
    new_length: bool,
    new_body: bytes | None = None,
    scores: Sequence[tuple[str, float]] = (),
) -> bytes:
    """The reply that carries a decision, in one message: headers, metadata, and a new body.

    `reply` is REQUEST_HEADERS, or REQUEST_BODY in BUFFERED mode, where `new_body` replaces the
    collected one. `destination` must be settable; other headers that are not are left out.
    Envoy removes before it sets, so our own values survive the removal of a client's. Without a
    destination neither header nor metadata names any, and the gateway falls back on its own
    balancing.
    """
    mutation = [] if destination is None else [set_header(protocol.DESTINATION, destination)]
    mutation += [
        set_header(name, value)
        for name, value in set_headers
        if name != protocol.DESTINATION and settable(name, value)
    ]
    mutation.append(_REMOVE_ROUTING)
    mutation += [_remove_header(name) for name in remove_headers if _NAME.fullmatch(name)]
    if new_length:
        mutation.append(_REMOVE_LENGTH)
    common = _field(b"\x12", b"".join(mutation))
    if new_body is not None:
        common += _field(b"\x1a", _field(b"\x0a", new_body))
    return _field(reply, _field(b"\x0a", common)) + _routing_metadata(destination, scores)


def _routing_metadata(destination: str | None, scores: Sequence[tuple[str, float]]) -> bytes:
    if not scores:
        return b"" if destination is None else _destination_metadata(destination)
    named = b"" if destination is None else _destination_entry(destination)
    return _metadata(named + _scores_entry(scores))


def response_headers(
    set_headers: Iterable[tuple[str, str]], remove_headers: Iterable[str]
) -> bytes:
    """The reply to an answer's headers; `set_headers` that are not settable are left out."""
    mutation = [set_header(name, value) for name, value in set_headers if settable(name, value)]
    mutation += map(_remove_header, remove_headers)
    if not mutation:
        return CONTINUE_RESPONSE_HEADERS
    common = _field(b"\x12", b"".join(mutation))
    return _field(RESPONSE_HEADERS, _field(b"\x0a", common))


def new_response_body(body: bytes, *, new_length: bool) -> bytes:
    """The reply that puts `body` in the place of a piece, where pieces are answered one by one.

    `new_length`: the answer's headers still wait for this reply, and declare another length.
    """
    common = _field(b"\x12", _REMOVE_LENGTH) if new_length else b""
    common += _field(b"\x1a", _field(b"\x0a", body))
    return _field(RESPONSE_BODY, _field(b"\x0a", common))


@lru_cache(maxsize=4096)
def _piece_prefix(reply: bytes, size: int) -> bytes:
    """All that stands before a StreamedBodyResponse of `size` bytes."""
    mutation = b"\x1a" + varint(size)
    common = b"\x1a" + varint(len(mutation) + size) + mutation
    body = b"\x0a" + varint(len(common) + size) + common
    return reply + varint(len(body) + size) + body


def piece(reply: bytes, body: bytes, *, end: bool) -> bytes:
    """One piece of a streamed body; `reply` is REQUEST_BODY or RESPONSE_BODY."""
    size = varint(len(body)) if body else b""
    length = len(size) + len(body) + (1 if body else 0) + (2 if end else 0)
    return b"".join(
        (
            _piece_prefix(reply, length),
            b"\x0a" if body else b"",
            size,
            body,
            _END if end else b"",
        )
    )


def pieces(reply: bytes, body: bytes, *, end: bool) -> list[bytes]:
    """A whole body in pieces that every gateway takes (A01); an empty one is one empty piece."""
    limit = protocol.MAX_BODY_PIECE
    if len(body) <= limit:
        return [piece(reply, body, end=end)]
    last = (len(body) - 1) // limit * limit
    return [
        piece(reply, body[at : at + limit], end=end and at == last)
        for at in range(0, last + 1, limit)
    ]


def refusal(fault: Refusal) -> bytes:
    """Answer the client ourselves, in the shape of OpenAI's errors (A08)."""
    reason = fault.reason
    message = f"inference error: {fault.code} - {fault}"
    error = {"message": message, "type": fault.kind, "param": None, "code": reason}
    headers = {"content-type": "application/json", protocol.DROP_REASON: reason}
    if fault.status in (429, 503):
        headers["retry-after"] = str(RETRY_AFTER_S)
    mutation = b"".join(set_header(name, value) for name, value in headers.items())
    immediate = pb.ImmediateResponse(
        status=pb.HttpStatus(code=fault.status),
        headers=pb.HeaderMutation.FromString(mutation),
        body=json.dumps({"error": error}).encode(),
        details=reason,
    )
    return pb.ProcessingResponse(immediate_response=immediate).SerializeToString()
