"""Unfold compressed bodies, within bounds, to read them: the client's own bytes pass on.

A few kilobytes may unfold to gigabytes (fault A14), so never more than the limit of a plain body
is unfolded, and never more members than anybody has reason to send.
"""

import zlib

from epp.errors import BadRequest, TooLarge, UnsupportedMedia

IDENTITY = frozenset({"", "identity"})
MAX_RATIO = 1032
"""Most bytes that one byte of deflate unfolds to."""
MAX_MEMBERS = 16
"""A gzip file may consist of several; each is unfolded by itself."""

_GZIP = frozenset({"gzip", "x-gzip"})
_DEFLATE = "deflate"
_GZIP_BITS = 31
_ZLIB_BITS = 15
_RAW_BITS = -15


def coding(header: str) -> str:
    """The one coding of a `content-encoding` header; several are left as they stand."""
    if not header:
        return ""
    codings = [name for part in header.split(",") if (name := part.strip().lower()) not in IDENTITY]
    return ",".join(codings)


def unfolded(body: bytes, coding: str, limit: int) -> bytes:
    """The content of a body in this coding.

    Raises UnsupportedMedia for a coding that is not known, TooLarge where the content has more
    than `limit` bytes, and BadRequest where the body is not what its coding says.
    """
    if not coding:
        return body
    if coding not in _GZIP and coding != _DEFLATE:
        raise UnsupportedMedia(
            "this content-encoding is not supported here; send the body as gzip, deflate or "
            "identity, in one of them only"
        )
    try:
        if coding == _DEFLATE:
            return _member(body, _deflate_bits(body), limit)[0]
        return _members(body, limit)
    except zlib.error:
        raise BadRequest(
            "the body is not what its content-encoding says; send it whole, and name its own"
        ) from None


def _members(body: bytes, limit: int) -> bytes:
    content = b""
    for _ in range(MAX_MEMBERS):
        more, body = _member(body, _GZIP_BITS, limit - len(content))
        content += more
        if not body.strip(b"\0"):
            return content
    raise BadRequest(f"the body has more than {MAX_MEMBERS} gzip members; send one")


def _member(body: bytes, bits: int, limit: int) -> tuple[bytes, bytes]:
    """The content of the first member, and what follows it."""
    reader = zlib.decompressobj(bits)
    content = reader.decompress(body, limit + 1)
    if len(content) > limit:
        raise TooLarge("the body unfolds to more bytes than a request may have; send a smaller one")
    if not reader.eof:
        raise zlib.error("cut short")
    return content, reader.unused_data


def _deflate_bits(body: bytes) -> int:
    """Clients send deflate with zlib's header, as the standard says, or without."""
    wrapped = len(body) > 1 and body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0
    return _ZLIB_BITS if wrapped else _RAW_BITS
