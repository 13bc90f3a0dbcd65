"""Which header fields pass a proxy, and in which spelling. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from epp.protocol import (
    ADMIN_TOKEN,
    HOP_BY_HOP_HEADERS,
    PICKER_HEADERS,
    REQUEST_ID,
    ROUTING_HEADERS,
    TIMEOUT_MS,
)
from epp.tracing.context import TRACEPARENT, TRACESTATE

RawHeaders = Sequence[tuple[bytes, bytes]]
Fields = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(name.encode() for name in HOP_BY_HOP_HEADERS)
_INTERNAL = frozenset(name.encode() for name in (*ROUTING_HEADERS, *PICKER_HEADERS, ADMIN_TOKEN))
_ACCEPT_ENCODING = b"accept-encoding"
_REQUEST_ID = REQUEST_ID.encode()
_EXPECT = b"expect"
"""Answered by the proxy itself: the engine gets the body without asking for it."""
CONTENT_LENGTH = b"content-length"
_NOT_FOR_ENGINES = frozenset({_EXPECT, *_HOP_BY_HOP, *_INTERNAL})
_NOT_BESIDE_LENGTH = _NOT_FOR_ENGINES | {CONTENT_LENGTH}
_NOT_FOR_LEGS = _NOT_BESIDE_LENGTH | {_REQUEST_ID, _ACCEPT_ENCODING}
_NOT_FOR_ALL_LEGS = _NOT_FOR_LEGS | {
    name.encode() for name in ("host", TRACEPARENT, TRACESTATE, *TIMEOUT_MS)
}
_KEPT_OPTIONS = frozenset({b"", b"host", CONTENT_LENGTH, b"content-type"})
_LASTING = frozenset({b"", b"keep-alive", b"close"})
_NO_OPTIONS: frozenset[bytes] = frozenset()
_CONNECTION = len(b"connection")
OF_CONTENT = (b"content-type", b"content-encoding", CONTENT_LENGTH)
"""Fields that say what a body is."""

_CONTROLS = bytes((*range(9), *range(10, 32), 127))

MAX_DECISION_ID = 128
"""Longest decision id that is reported, in characters."""


def for_engine(headers: RawHeaders, length: int | None = None) -> Fields:
    """Fields of a client's request that the engine gets, repeated ones too, in order.

    `length` is that of a body that is sent whole. An answer must be readable here, so the engine
    is asked for no encoding of it.
    """
    dropped = _NOT_FOR_ENGINES if length is None else _NOT_BESIDE_LENGTH
    kept = [
        (field[0], b"identity") if is_identity_only(field[0].lower()) else field
        for field in _kept(headers, dropped)
    ]
    if length is not None:
        kept.append((CONTENT_LENGTH, b"%d" % length))
    return kept


def is_identity_only(key: bytes) -> bool:
    """Whether an engine gets this field (in lower case) with another value than it had."""
    return key == _ACCEPT_ENCODING


def passes_as_it_is(key: bytes) -> bool:
    """Whether an engine gets this field (in lower case) of a request whose body is sent whole."""
    return key not in _NOT_BESIDE_LENGTH and not is_identity_only(key)


def passes_back_beside_length(key: bytes) -> bool:
    """Whether a client gets this field (in lower case) of an answer whose length is told apart."""
    return key not in _HOP_BY_HOP and key != CONTENT_LENGTH


def names_options(connection: bytes) -> bool:
    """Whether a value of `Connection` says more than how long the connection lasts."""
    return connection.lower() not in _LASTING


def for_leg(headers: RawHeaders, request_id: str, length: int) -> Fields:
    """Fields of a client's request that an engine gets on a leg of its own, under a fresh id."""
    return [
        *_kept(headers, _NOT_FOR_LEGS),
        (CONTENT_LENGTH, b"%d" % length),
        (_ACCEPT_ENCODING, b"identity"),
        (_REQUEST_ID, request_id.encode()),
    ]


def is_of_all_legs(key: bytes) -> bool:
    """Whether all legs of a request get this field (in lower case) as the client sent it."""
    return key not in _NOT_FOR_ALL_LEGS


def without(fields: Fields, name: bytes) -> Fields:
    return [(key, value) for key, value in fields if key.lower() != name]


def replaced(fields: Fields, name: bytes, value: bytes) -> Fields:
    """Fields in which this one has this value wherever it stands; it is not added."""
    return [(key, value if key.lower() == name else old) for key, old in fields]


@dataclass(slots=True)
class Content:
    """What a head says of the body behind it. Never changed once it is made."""

    kind: str = ""
    coding: str = ""
    length: int | None = None
    """As it is announced, if it is."""


def content_of(fields: RawHeaders) -> Content:
    """Of several fields of one name the first counts."""
    found: dict[bytes, bytes] = {}
    for name, value in fields:
        key = name.lower()
        if key in OF_CONTENT:
            found.setdefault(key, value)
    kind, coding, length = (found.get(key) for key in OF_CONTENT)
    return content(kind, coding, length)


def content(kind: bytes | None, coding: bytes | None, length: bytes | None) -> Content:
    """The same from the values of these fields; None where there is none."""
    known = int(length) if length is not None and length.isdigit() else None
    return Content(_text(kind), _text(coding), known)


@lru_cache(maxsize=256)
def _text(value: bytes | None) -> str:
    """An engine sends the same ones again and again."""
    return "" if value is None else value.decode("latin-1")


def length_of(fields: RawHeaders) -> int | None:
    """The body's length as it is announced, if it is."""
    for name, value in fields:
        if name.lower() == CONTENT_LENGTH:
            return int(value) if value.isdigit() else None
    return None


def for_client(headers: RawHeaders) -> Fields:
    """Fields of an engine's response that the client gets, repeated ones too, in order."""
    return _kept(headers, _HOP_BY_HOP)


def is_fit(headers: RawHeaders) -> bool:
    """Whether every field can be written again: none holds a control character."""
    return is_printable(b"".join([part for field in headers for part in field]))


def is_printable(text: bytes, *, lines: int = 0) -> bool:
    """Whether it holds no control character but the ends of so many lines."""
    return len(text.translate(None, _CONTROLS)) == len(text) - lines


def asks_for_upgrade(headers: RawHeaders) -> bool:
    """Whether the client wants to leave HTTP on this connection."""
    return b"upgrade" in _connection_options(headers)


def decision_id(text: str | None) -> str | None:
    """The picker's name of this decision, or None when absent or unfit to be reported."""
    if text and len(text) <= MAX_DECISION_ID and text.isascii() and text.isprintable():
        return text
    return None


def count(text: str | None) -> int | None:
    """A count from a header, or None when absent or not one of 32 bits."""
    if text and text.isascii() and text.isdigit() and len(text) <= 10:
        number = int(text)
        return number if number < 1 << 32 else None
    return None


def _kept(headers: RawHeaders, dropped: frozenset[bytes]) -> Fields:
    options = _connection_options(headers)
    if options:
        dropped = dropped | options
    return [field for field in headers if field[0].lower() not in dropped]


def _connection_options(headers: RawHeaders) -> frozenset[bytes]:
    """Fields that `Connection` names are hop-by-hop as well, except those that frame a message."""
    options = _NO_OPTIONS
    for name, value in headers:
        if len(name) == _CONNECTION and name.lower() == b"connection":
            options |= {option.strip().lower() for option in value.split(b",")}
    return options - _KEPT_OPTIONS if options else options
