"""Reads requests from bytes. Pure.

httptools (llhttp in its strict mode) finds the tokens, and refuses what no HTTP is. Here stands
what else makes a request one that two readers could take for different ones, or that is too large:
 1. the version is 1.1 or 1.0; one Host in 1.1, at most one in 1.0;
 2. the target is visible ASCII; no value holds a control character;
 3. a body is announced by one Content-Length of digits, or in 1.1 by one `Transfer-Encoding:
    chunked`, never both;
 4. no field is longer than `max_header_bytes`, there are at most `max_headers` of them, all
    together `HEAD_FIELDS` times as long as one may be; the same for trailers, which are dropped;
 5. what frames the chunks of a body stays in proportion to what is in them.
A request that is here completely, and whose head differs from those before in its values only, is
read by a template instead (`templates`).
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

import httptools

from sidecar.http.headers import CONTENT_LENGTH, is_printable
from sidecar.http.incoming import Incoming
from sidecar.http.refusals import (
    BAD_BODY,
    HEAD_TOO_LARGE,
    TARGET_UNREADABLE,
    UNREADABLE,
    Refused,
)
from sidecar.http.shapes import RequestShape, request_shape
from sidecar.proxy import Limits

from .templates import MAX_DIGITS, PATH, Template, template_of

HEAD_FIELDS = 4
"""A head as a whole may be this many times as long as its longest field."""
OVERHEAD = 16
"""Bytes of chunk framing for each byte of a body, beyond those that a head may have."""
_TARGET = re.compile(rb"[\x21-\x7e]+")


class Mark(Enum):
    """What is no data."""

    END = "end"
    """The message is complete."""


END: Final = Mark.END


@dataclass(frozen=True, slots=True)
class Broken:
    """What came is no HTTP, or too much of it. Nothing follows."""

    refused: Refused


Event = Incoming | bytes | Mark | Broken


class _Refusal(Exception):
    """Leaves the parser by way of a callback."""


class RequestReader:
    """Reads one connection, message after message. Dead after `Broken`."""

    __slots__ = (
        "_body",
        "_broken",
        "_dead",
        "_events",
        "_fed",
        "_in_body",
        "_keep_alive",
        "_left",
        "_limits",
        "_method",
        "_names",
        "_overhead",
        "_parser",
        "_rests",
        "_shape",
        "_target",
        "_template",
        "_values",
    )
    __deletable__ = ("_parser",)  # tells mypyc of `drop`
    _method: str
    _shape: RequestShape

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._events: list[Event] = []
        self._names: list[bytes] = []
        self._values: list[bytes] = []
        self._target = b""
        self._in_body = False
        self._keep_alive = True
        self._rests = True  # the parser stands before a message
        self._left = 0
        self._overhead = 0  # bytes of the message that are no data
        self._body = 0  # bytes that are
        self._fed = 0  # bytes of data among those that are being read
        self._broken: Refused | None = None
        self._dead = False
        self._template: Template | None = None  # of the last head that the parser took

    def drop(self) -> None:
        """The connection is gone: it is fed no more. Its parser would hold the reader for good."""
        self._dead = True
        del self._parser

    @property
    def left(self) -> int:
        """Bytes that surely belong to the body that is being read."""
        return self._left

    @property
    def begun(self) -> bool:
        """Whether a head has begun and not ended."""
        return not self._in_body and bool(self._target or self._names)

    def feed(self, data: bytes) -> list[Event]:
        """What these bytes tell. After `Broken`, and after an upgrade was asked for, nothing."""
        if self._dead:
            return []
        if self._template is not None and self._rests:
            found = self._repeated(self._template, data)
            if found is not None:
                return found
        events: list[Event] = []
        self._events = events
        self._fed = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._dead = True  # what follows is no HTTP/1.1, and is not wanted
        except httptools.HttpParserError:
            if not self._dead:  # else it is what came behind the last request, and nobody's
                self._dead = True
                events.append(Broken(self._broken or self._unreadable()))
            return events
        # What framed earlier messages in the same bytes counts as well: it is little.
        self._overhead += len(data) - self._fed
        if self._too_long():
            self._dead = True
            events.append(Broken(BAD_BODY if self._in_body else HEAD_TOO_LARGE))
        return events

    def _repeated(self, template: Template, data: bytes) -> list[Event] | None:
        """All that these bytes tell if they are one request of a known kind, and nothing else."""
        read = template.read(data, self._limits.max_header_bytes)
        if read is None:
            return None
        (target, *values), end = read
        shape = self._shape
        announced = shape.first(CONTENT_LENGTH, values)
        size = len(data) - end
        if size != (0 if announced is None else int(announced)):
            return None
        head = Incoming(
            method=self._method,
            target=target.decode(),
            shape=shape,
            worth=values,
            length=None if announced is None else size,
            has_body=size > 0,
        )
        return [head, data[end:], END] if size else [head, END]

    def _unreadable(self) -> Refused:
        return BAD_BODY if self._in_body else UNREADABLE

    def _too_long(self) -> bool:
        most = HEAD_FIELDS * self._limits.max_header_bytes
        return self._overhead > most + OVERHEAD * self._body

    # --- httptools' callbacks

    def on_message_begin(self) -> None:
        self._rests = False
        self._names, self._values = [], []
        self._target = b""
        self._in_body = False
        self._overhead = self._body = self._left = 0

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._names.append(name)
        self._values.append(value)

    def on_headers_complete(self) -> None:
        version = self._parser.get_http_version()
        if version not in {"1.1", "1.0"}:
            self._refuse(UNREADABLE)
        if not _TARGET.fullmatch(self._target) or len(self._target) > self._limits.max_header_bytes:
            self._refuse(TARGET_UNREADABLE)
        head = self._head(http11=version == "1.1")
        self._in_body = True
        self._left = head.length or 0
        self._keep_alive = head.keep_alive
        self._names, self._values = [], []  # from here on those of trailers
        self._events.append(head)

    def on_body(self, data: bytes) -> None:
        self._body += len(data)
        self._fed += len(data)
        if self._left:
            self._left -= len(data)
        self._events.append(data)

    def on_message_complete(self) -> None:
        if len(self._names) > self._limits.max_headers:
            self._refuse(BAD_BODY)
        self._in_body = False
        self._target = b""
        self._names, self._values = [], []
        self._overhead = self._body = self._left = 0
        self._events.append(END)
        self._rests = True
        self._dead = not self._keep_alive

    # --- the rules

    def _head(self, *, http11: bool) -> Incoming:
        names, values = tuple(self._names), self._values
        if len(names) > self._limits.max_headers:
            self._refuse(HEAD_TOO_LARGE)
        text = b"\n".join((*values, b""))
        if not is_printable(text, lines=len(values)):
            self._refuse(UNREADABLE)
        if b" \n" in text or b"\t\n" in text:
            values = [value.rstrip(b" \t") for value in values]
        shape = request_shape(names)
        most = self._limits.max_header_bytes
        if shape.size + len(text) > most and any(
            len(name) + len(value) > most for name, value in zip(names, values, strict=True)
        ):
            self._refuse(HEAD_TOO_LARGE)
        hosts = len(shape.at.get(b"host", ()))
        if hosts > 1 or (http11 and not hosts):
            self._refuse(UNREADABLE)
        length, chunked = self._framing(shape, values, http11=http11)
        said = shape.at.get(b"connection")
        options = b"" if said is None else b",".join([values[number] for number in said])
        keep_alive = http11 and b"close" not in options.lower()
        method = self._parser.get_method()
        self._method, self._shape = method.decode(), shape
        self._template = None
        if keep_alive:
            self._template = template_of(b"%b %b HTTP/1\\.1" % (re.escape(method), PATH), shape)
        return Incoming(
            method=self._method,
            target=self._target.decode(),
            shape=shape,
            worth=values,
            http11=http11,
            length=length,
            has_body=chunked or bool(length),
            keep_alive=keep_alive,
        )

    def _framing(
        self, shape: RequestShape, values: list[bytes], *, http11: bool
    ) -> tuple[int | None, bool]:
        lengths = shape.at.get(b"content-length")
        codings = shape.at.get(b"transfer-encoding")
        if codings is not None:
            plain = len(codings) == 1 and values[codings[0]].lower() == b"chunked"
            if not plain or lengths is not None or not http11:
                self._refuse(UNREADABLE)
            return None, True
        if lengths is None:
            return None, False
        length = values[lengths[0]]
        if len(lengths) != 1 or not length.isdigit() or len(length) > MAX_DIGITS:
            self._refuse(UNREADABLE)
        return int(length), False

    def _refuse(self, refused: Refused) -> None:
        self._broken = refused
        raise _Refusal
