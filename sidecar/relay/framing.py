"""How messages are written. Pure.

Rules
 1. The framing of a message that goes out is always our own: bytes of a body pass as they are, the
    chunks, extensions and trailers around them do not (RFC 9110 6.5.1 allows to drop the latter).
    So nothing that two readers could frame differently ever leaves here.
 2. A body whose length is known is announced; otherwise it is chunked, and for a client of HTTP/1.0
    it ends with the connection.
"""

from enum import Enum, auto
from functools import lru_cache

from sidecar.http.headers import CONTENT_LENGTH, Fields, RawHeaders, without

LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODILESS = {204, 304}
_HOST, _DATE, _LENGTH = len(b"host"), len(b"date"), len(CONTENT_LENGTH)


class Frame(Enum):
    """How the body of an answer is delimited."""

    NONE = auto()
    LENGTH = auto()
    CHUNKS = auto()
    UNTIL_CLOSE = auto()


def frame_of(status: int, method: str, length: int | None, *, http11: bool) -> Frame:
    """How an answer to this request is framed; `length` of its body as far as it is known."""
    if method == "HEAD" or status in _BODILESS:
        return Frame.NONE
    if length is not None:
        return Frame.LENGTH
    return Frame.CHUNKS if http11 else Frame.UNTIL_CLOSE


def answer_head(
    status: int,
    reason: str,
    fields: Fields,
    *,
    frame: Frame,
    length: int | None,
    date: bytes,
    close: bool,
) -> bytes:
    """Status line and fields of an answer. `date` is the field, for one that has none.

    Of an answer without a body the length is told all the same if it is known, but not of a 204.
    """
    lines = [_status_line(status, reason)]
    dated = False
    for field in fields:
        size = len(field[0])
        if size == _LENGTH and field[0].lower() == CONTENT_LENGTH:
            continue
        dated = dated or (size == _DATE and field[0].lower() == b"date")
        lines.append(b": ".join(field))
    if frame is Frame.CHUNKS:
        lines.append(b"Transfer-Encoding: chunked")
    elif length is not None and status != 204:
        lines.append(b"Content-Length: %d" % length)
    if not dated:
        lines.append(date)
    if close or frame is Frame.UNTIL_CLOSE:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def whole_head(
    status: int, reason: str, lines: bytes, *, length: int, date: bytes | None, close: bool
) -> bytes:
    """The head of an answer whose body is here, around fields that are written already, each with
    its line's end."""
    more = b"" if date is None else date + b"\r\n"
    if close:
        more += b"Connection: close\r\n"
    return b"%b\r\n%bContent-Length: %d\r\n%b\r\n" % (
        _status_line(status, reason),
        lines,
        length,
        more,
    )


@lru_cache(maxsize=256)
def _status_line(status: int, reason: str) -> bytes:
    return b"HTTP/1.1 %d %b" % (status, reason.encode("latin-1", "replace"))


def request_head(
    method: str, target: str, fields: RawHeaders, *, host: str, chunked: bool
) -> bytes:
    """Request line and fields as an engine gets them. `host` is for a request that names none."""
    if chunked:
        fields = without(list(fields), CONTENT_LENGTH)
    lines = [b": ".join(field) for field in fields]
    if not any(len(name) == _HOST and name.lower() == b"host" for name, _ in fields):
        lines.append(b"Host: %b" % host.encode())
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
    return written_head(method, target, b"\r\n".join((*lines, b"")))


def written_head(method: str, target: str, lines: bytes) -> bytes:
    """The same around fields that are written already, each with its line's end."""
    return f"{method} {target} HTTP/1.1\r\n".encode("latin-1") + lines + b"\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk; `data` must not be empty, for that would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
