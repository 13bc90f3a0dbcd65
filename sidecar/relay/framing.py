"""How messages are written. Pure.

Rules
 1. The framing of a message that goes out is always our own: bytes of a body pass as they are, the
    chunks, extensions and trailers around them do not (RFC 9110 6.5.1 allows to drop the latter).
    So nothing that two readers could frame differently ever leaves here.
 2. A body whose length is known is announced; otherwise it is chunked, and for a client of HTTP/1.0
    it ends with the connection.
"""

from enum import Enum, auto

from sidecar.http.headers import CONTENT_LENGTH, Fields, RawHeaders, without

LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_BODILESS = {204, 304}


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
    """Status line and fields of an answer. `date` is the field as a whole, for one that has none.

    Of an answer without a body the length is told all the same if it is known, but not of a 204.
    """
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, reason.encode("latin-1", "replace"))]
    dated = False
    for name, value in without(fields, CONTENT_LENGTH):
        lines.append(b"%b: %b\r\n" % (name, value))
        dated = dated or (len(name) == 4 and name.lower() == b"date")
    if frame is Frame.CHUNKS:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    elif length is not None and status != 204:
        lines.append(b"Content-Length: %d\r\n" % length)
    if not dated:
        lines.append(date)
    if close or frame is Frame.UNTIL_CLOSE:
        lines.append(b"Connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def request_head(
    method: str, target: str, fields: RawHeaders, *, host: str, chunked: bool
) -> bytes:
    """Request line and fields as an engine gets them. `host` is for a request that names none."""
    lines = [b"%b %b HTTP/1.1\r\n" % (method.encode(), target.encode("latin-1"))]
    named = False
    for name, value in without(list(fields), CONTENT_LENGTH) if chunked else fields:
        lines.append(b"%b: %b\r\n" % (name, value))
        named = named or (len(name) == 4 and name.lower() == b"host")
    if not named:
        lines.append(b"Host: %b\r\n" % host.encode())
    if chunked:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def chunk(data: bytes) -> bytes:
    """One chunk; `data` must not be empty, for that would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
