"""Reads an engine's answers from bytes. Pure.

As strict as towards clients: an answer that two readers could frame differently is garbled, and its
connection is never used again. Informational answers (1xx) are passed over, `MAX_INTERIM` at most.
"""

from dataclasses import dataclass

import httptools

from sidecar.http.client import Head
from sidecar.http.headers import is_printable
from sidecar.proxy import Limits

from .requests import END, HEAD_FIELDS, MAX_DIGITS, OVERHEAD, Mark

MAX_INTERIM = 16
_BODILESS = {204, 304}
_LENGTH, _CODING = len(b"content-length"), len(b"transfer-encoding")


@dataclass(frozen=True, slots=True)
class Garbled:
    """What came is no HTTP, or too much of it, or broke off. Nothing follows."""


GARBLED = Garbled()
Event = Head | bytes | Mark | Garbled


class _Refusal(Exception):
    """Leaves the parser by way of a callback."""


class AnswerReader:
    """Reads the answers of one connection, one after the other. `begin` before each."""

    __slots__ = (
        "_body",
        "_events",
        "_fields",
        "_http11",
        "_interim",
        "_is_head",
        "_limits",
        "_most",
        "_over",
        "_parser",
        "_reason",
        "_until_close",
        "_wire",
        "headed",
        "reusable",
        "seen",
    )

    def __init__(self, limits: Limits, *, method: str = "GET") -> None:
        self._limits = limits
        self._most = HEAD_FIELDS * limits.max_header_bytes
        self._parser = httptools.HttpResponseParser(self)
        self.begin(method)

    def begin(self, method: str) -> None:
        """An answer to this method is due, on a connection that is new or was `reusable`."""
        self._is_head = method == "HEAD"
        self._events: list[Event] = []
        self._fields: list[tuple[bytes, bytes]] = []
        self._reason = b""
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
        if not self._over and self._wire - self._body > self._most + OVERHEAD * self._body:
            self._over = True
            events.append(GARBLED)
        return events

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
        self._fields = []
        self._reason = b""

    def on_status(self, part: bytes) -> None:
        self._reason = self._reason + part if self._reason else part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value.rstrip(b" \t")))
        if len(self._fields) > self._limits.max_headers:
            raise _Refusal

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._interim += 1
            if status == 101 or status < 100 or self._interim > MAX_INTERIM:
                raise _Refusal
            return
        self._check(status)
        head = Head(status, self._reason.decode("latin-1"), self._fields)
        self._fields = []  # from here on those of trailers
        self.headed = True
        self._events.append(head)
        if self._is_head:  # the parser would wait for the body
            self._end()
            self._parser = httptools.HttpResponseParser(self)

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

    def _check(self, status: int) -> None:
        version = self._parser.get_http_version()
        self._http11 = version == "1.1"
        if version not in {"1.1", "1.0"} or status > 999:
            raise _Refusal
        lengths: list[bytes] = []
        codings: list[bytes] = []
        most = self._limits.max_header_bytes
        text = [self._reason]
        for field in self._fields:
            name, value = field
            size = len(name)
            if size + len(value) > most:
                raise _Refusal
            text += field
            if size == _LENGTH and name.lower() == b"content-length":
                lengths.append(value)
            elif size == _CODING and name.lower() == b"transfer-encoding":
                codings.append(value)
        if not is_printable(b"".join(text)):
            raise _Refusal
        if codings and (codings[0].lower() != b"chunked" or len(codings) > 1 or not self._http11):
            raise _Refusal
        if lengths and (
            codings or len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > MAX_DIGITS
        ):
            raise _Refusal
        bodiless = self._is_head or status in _BODILESS
        self._until_close = not (codings or lengths or bodiless)
