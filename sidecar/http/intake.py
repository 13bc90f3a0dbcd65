"""Request bodies before the engine sees them: read whole, bounded, and without the parameters.

Every body is read whole, whatever it calls itself, because an engine may read JSON whatever it is
called; only forms pass as they come, since no engine looks for JSON in them. All bodies that are
held together are bounded as well.
"""

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from sidecar.proxy import Limits
from sidecar.transfer.params import Unreadable, cleaned
from sidecar.transfer.redaction import may_name

from .client import Client
from .refusals import BAD_ENCODING, BAD_JSON, HIDDEN_PARAMS, TOO_LARGE, TOO_MUCH, LegError
from .upload import Upload

INLINE_BYTES = 64 << 10
"""Bodies above this are parsed off the event loop."""
_INFLATE = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def is_form(content_types: Sequence[str]) -> bool:
    """Whether a body with these values of `content-type` passes as it comes."""
    kinds = [kind.partition(";")[0].strip().lower() for kind in content_types]
    return kinds == ["multipart/form-data"]


@dataclass(slots=True)
class Held:
    """One exchange's share of what is held."""

    _store: "Store"
    _bytes: int = 0

    def grow(self, size: int) -> None:
        """Raises LegError when all bodies together would exceed the limit."""
        if self._store.held_bytes + size > self._store.limits.max_held_bytes:
            raise LegError(TOO_MUCH)
        self._bytes += size
        self._store.held_bytes += size

    def release(self) -> None:
        self._store.held_bytes -= self._bytes
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(slots=True)
class Store:
    """Counts the bodies that are held, of all exchanges."""

    limits: Limits
    held_bytes: int = field(default=0, init=False)

    def share(self) -> Held:
        """A context that gives back what it held."""
        return Held(self)


async def whole(client: Client, limits: Limits, held: Held) -> bytes:
    """The request's body. Raises LegError: too large, stalled, broken, or too much at once."""
    if not client.incoming.has_body:
        return b""
    upload = Upload(client, limits, lambda: None)
    pieces = []
    while piece := await upload.next():
        held.grow(len(piece))
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def without_params(body: bytes, encoding: str, limits: Limits) -> bytes:
    """A client's body without the parameters, the same object when there are none.

    Raises LegError when it may hold them where they cannot be taken out.
    """
    coding = encoding.strip().lower()
    if coding not in {"", "identity"}:
        _check_coded(body, coding, limits)
    if not may_hold(body):
        return body
    try:
        if len(body) <= INLINE_BYTES:
            return cleaned(body)
        return await asyncio.to_thread(cleaned, body)
    except Unreadable as error:
        raise LegError(BAD_JSON) from error


def may_hold(body: bytes) -> bool:
    """Whether some JSON parser could find the name: those of UTF-16 and 32 pass over NULs."""
    return may_name(body if body.find(b"\0") < 0 else body.replace(b"\0", b""))


def _check_coded(body: bytes, coding: str, limits: Limits) -> None:
    """Engines do not undo codings of requests; something before one might."""
    if coding not in _INFLATE:
        raise LegError(BAD_ENCODING)
    inflater = zlib.decompressobj(_INFLATE[coding])
    try:
        text = inflater.decompress(body, limits.max_body_bytes + 1)
    except zlib.error as error:
        raise LegError(BAD_ENCODING) from error
    if len(text) > limits.max_body_bytes:
        raise LegError(TOO_LARGE)
    if not inflater.eof or inflater.unused_data:  # cut short, or more of it behind
        raise LegError(BAD_ENCODING)
    if may_hold(text):
        raise LegError(HIDDEN_PARAMS)
