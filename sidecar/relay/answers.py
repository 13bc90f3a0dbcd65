"""Reads an engine's answers from bytes. Pure.

As strict as towards clients: an answer that two readers could frame differently is garbled, and its
connection is never used again. Informational answers (1xx) are passed over, `MAX_INTERIM` at most.
An answer that is here completely, and whose head differs from those before in its values only, is
read by a template instead (`templates`).
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import httptools

from sidecar.http.client import Head
from sidecar.http.headers import CONTENT_LENGTH, is_printable
from sidecar.http.shapes import AnswerShape, answer_shape
from sidecar.proxy import Limits

from .requests import END, HEAD_FIELDS, OVERHEAD, Mark
from .templates import MAX_DIGITS, Template, template_of

MAX_INTERIM = 16
_BODILESS = {204, 304}
_MAX_CHUNK_HEAD = 10
_CHUNK_ENDS = 4
"""Bytes of the two line ends of a chunk."""
_ZERO = ord("0")


@dataclass(frozen=True, slots=True)
class Garbled:
    """What came is no HTTP, or too much of it, or broke off. Nothing follows."""


GARBLED = Garbled()
Event = Head | bytes | Mark | Garbled


@lru_cache(maxsize=1024)
def _chunk_size(head: bytes) -> int:
    """What the head of a chunk announces, if it is written as we would; else 0."""
    # `int` takes signs, gaps and prefixes as well: of these only 0x is alphanumeric
    if head[0] == _ZERO or not head.isalnum():
        return 0
    try:
        return int(head, 16)
    except ValueError:
        return 0


class _Refusal(Exception):
    """Leaves the parser by way of a callback."""


class AnswerReader:
    """Reads the answers of one connection, one after the other. `begin` before each."""

    __slots__ = (
        "_between",
        "_body",
        "_events",
        "_http11",
        "_interim",
        "_is_head",
        "_limits",
        "_most",
        "_names",
        "_over",
        "_parser",
        "_reason",
        "_shape",
        "_status",
        "_template",
        "_until_close",
        "_values",
        "_wire",
        "headed",
        "reusable",
        "seen",
    )
    __deletable__ = ("_parser",)  # tells mypyc of `drop`
    _status: tuple[int, str]
    _shape: AnswerShape

    def __init__(self, limits: Limits, *, method: str = "GET") -> None:
        self._limits = limits
        self._most = HEAD_FIELDS * limits.max_header_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._template: Template | None = None  # of the last head that the parser took
        self.begin(method)

    def drop(self) -> None:
        """The connection is gone: it is fed no more. Its parser would hold the reader for good."""
        self._over = True
        del self._parser

    def begin(self, method: str) -> None:
        """An answer to this method is due, on a connection that is new or was `reusable`."""
        self._is_head = method == "HEAD"
        self._events: list[Event] = []
        self._names: list[bytes] = []
        self._values: list[bytes] = []
        self._reason = b""
        self._between = False  # two chunks
        self._interim = 0
        self._wire = self._body = 0
        self._over = False
        self._until_close = False
        self.seen = False
        """Whether a byte came."""
        self.headed = False
        """Whether the head of the final answer came."""
        self.reusable = False
        """Whether another request may follow on the connection. Known at the end."""

    @property
    def over(self) -> bool:
        """Whether the answer has ended, well or not."""
        return self._over

    def feed(self, data: bytes) -> list[Event]:
        """What these bytes tell. Bytes behind the end make the connection unusable."""
        if self._template is not None and not self.seen and not self._is_head:
            found = self._repeated(self._template, data)
            if found is not None:
                return found
        self.seen = True
        if self._over:
            self.reusable = False
            return []
        events: list[Event] = []
        self._events = events
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # an upgrade, too: none was asked for
            self.reusable = False
            if not self._over:
                self._over = True
                events.append(GARBLED)
            return events
        self._wire += len(data)
        if self._between:
            self._between = not self._over and data.endswith(b"\r\n")
        if not self._over and self._wire - self._body > self._most + OVERHEAD * self._body:
            self._over = True
            events.append(GARBLED)
        return events

    def _repeated(self, template: Template, data: bytes) -> list[Event] | None:
        """All that these bytes tell if they are one answer of a known kind, and nothing else."""
        read = template.read(data, self._limits.max_header_bytes)
        if read is None:
            return None
        values, end = read
        shape = self._shape
        size = len(data) - end
        if not size or int(values[shape.at[CONTENT_LENGTH][0]]) != size:
            return None
        self.seen = self.headed = self._over = self.reusable = True
        head = Head(*self._status, shape=shape, worth=values)
        return [head, data[end:], END]

    def chunk(self, data: bytes) -> int:
        """Bytes of content if this is one whole chunk, written as we would, where one may begin.

        It need not be fed then: the parser would stand again where it stands. Else 0.
        """
        if not self._between or not data.endswith(b"\r\n"):
            return 0
        end = data.find(b"\r\n", 0, _MAX_CHUNK_HEAD)
        if end < 1:
            return 0
        size = _chunk_size(data[:end])
        return size if len(data) == end + size + _CHUNK_ENDS else 0

    def eof(self) -> Mark | Garbled | None:
        """The connection ended; None when the answer had."""
        if self._over:
            return None
        self._over = True
        return END if self._until_close else GARBLED

    # --- httptools' callbacks

    def on_message_begin(self) -> None:
        if self._over:
            self.reusable = False
            raise _Refusal
        self._names, self._values = [], []
        self._reason = b""

    def on_status(self, part: bytes) -> None:
        self._reason = self._reason + part if self._reason else part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._names.append(name)
        self._values.append(value)
        if len(self._names) > self._limits.max_headers:
            raise _Refusal

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._interim += 1
            if status == 101 or status < 100 or self._interim > MAX_INTERIM:
                raise _Refusal
            return
        head = self._head(status)
        self._names, self._values = [], []  # from here on those of trailers
        self.headed = True
        self._events.append(head)
        if self._is_head:  # the parser would wait for the body
            self._end()
            self._parser = httptools.HttpResponseParser(self)

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True  # unless what follows has begun; see `feed`

    def on_body(self, data: bytes) -> None:
        if self._over:
            self.reusable = False
            raise _Refusal
        self._body += len(data)
        self._events.append(data)

    def on_message_complete(self) -> None:
        if self.headed and not self._over:
            self._end()

    # --- the rules

    def _end(self) -> None:
        self._over = True
        self.reusable = not self._until_close and self._http11 and self._parser.should_keep_alive()
        self._events.append(END)

    def _head(self, status: int) -> Head:
        version = self._parser.get_http_version()
        self._http11 = version == "1.1"
        if version not in {"1.1", "1.0"} or status > 999:
            raise _Refusal
        names, values = tuple(self._names), self._values
        text = b"\n".join((*names, *values, self._reason, b""))
        if not is_printable(text, lines=2 * len(names) + 1):
            raise _Refusal
        if b" \n" in text or b"\t\n" in text:
            values = [value.rstrip(b" \t") for value in values]
        most = self._limits.max_header_bytes
        if len(text) > most and any(
            len(name) + len(value) > most for name, value in zip(names, values, strict=True)
        ):
            raise _Refusal
        shape = answer_shape(names)
        self._frame(shape, values, status)
        self._template = self._template_of(shape, status)
        self._status, self._shape = (status, self._reason.decode("latin-1")), shape
        return Head(*self._status, shape=shape, worth=values)

    def _template_of(self, shape: AnswerShape, status: int) -> Template | None:
        if not self._http11 or status in _BODILESS or CONTENT_LENGTH not in shape.at:
            return None
        start = b"HTTP/1\\.1 %d %b" % (status, re.escape(self._reason))
        return template_of(start, shape)

    def _frame(self, shape: AnswerShape, values: list[bytes], status: int) -> None:
        """How the body ends. Refused is what two readers could take for different things."""
        codings = shape.at.get(b"transfer-encoding")
        lengths = shape.at.get(b"content-length")
        if codings is not None:
            chunked = len(codings) == 1 and values[codings[0]].lower() == b"chunked"
            if not chunked or lengths is not None or not self._http11:
                raise _Refusal
        elif lengths is not None:
            length = values[lengths[0]]
            if len(lengths) > 1 or not length.isdigit() or len(length) > MAX_DIGITS:
                raise _Refusal
        bodiless = self._is_head or status in _BODILESS
        self._between = codings is not None and not bodiless
        self._until_close = codings is None and lengths is None and not bodiless
