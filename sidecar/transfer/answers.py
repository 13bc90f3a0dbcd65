"""An engine's answer on its way to a client, without the parameters of a handoff. Pure.

In server-sent events each line of data is one JSON text, as every engine writes it. Compressed
bodies and those of other kinds pass unchanged.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from .redaction import BOM, JsonFilter, may_name_in_answer

_LINE_END = re.compile(rb"[\r\n]")
_LINE_ENDS = (b"\r", b"\n")
_DATA = b"data:"


class Filter(Protocol):
    """Passes one body on, piece by piece."""

    def feed(self, piece: bytes) -> bytes:
        """The bytes to pass on after this piece; may be empty."""

    def finish(self) -> bytes:
        """The body is complete: what was held back."""


@lru_cache(maxsize=256)
def answer_filter(content_type: str, content_encoding: str) -> Callable[[], Filter] | None:
    """Makes the filter for an engine's answer on its way to a client; None for what passes as it
    is."""
    kind = content_type.partition(";")[0].strip().lower()
    if content_encoding.strip().lower() in {"", "identity"}:
        if kind == "text/event-stream":
            return EventFilter
        if kind == "application/json" or kind.endswith("+json"):
            return JsonFilter
    return None


class EventFilter:
    """Server-sent events whose data, one JSON text a line, pass through a `JsonFilter`."""

    __slots__ = ("_data", "_prefix", "_started")

    def __init__(self) -> None:
        self._prefix: bytearray | None = bytearray()  # of the line; None once it is decided
        self._data: JsonFilter | None = None
        self._started = False

    @property
    def rests(self) -> bool:
        """Whether it stands before a line and holds nothing back."""
        return self._prefix is not None and not self._prefix and self._started

    def feed(self, piece: bytes) -> bytes:
        if (
            self._prefix is not None
            and not self._prefix
            and piece.endswith(_LINE_ENDS)
            and not may_name_in_answer(piece)
        ):
            self._started = True
            return piece  # whole lines that cannot name it
        out: list[bytes] = []
        at = 0
        while at < len(piece):
            found = _LINE_END.search(piece, at)
            end = found.start() if found else len(piece)
            out.append(self._in_line(piece[at:end]))
            if found:
                out += (self.finish(), found[0])
                self._prefix, self._data, self._started = bytearray(), None, True
                end += 1
            at = end
        return b"".join(out)

    def finish(self) -> bytes:
        if self._data:
            return self._data.finish()
        rest = bytes(self._prefix or b"")
        self._prefix = None
        return rest

    def _in_line(self, part: bytes) -> bytes:
        if self._prefix is not None:
            self._prefix += part
            begin = len(BOM) if not self._started and self._prefix.startswith(BOM) else 0
            if len(self._prefix) < begin + len(_DATA):
                return b""
            line = bytes(self._prefix)
            self._prefix = None
            if not line.startswith(_DATA, begin):
                return line
            self._data = JsonFilter()
            head = begin + len(_DATA)
            return line[:head] + self._data.feed(line[head:])
        return self._data.feed(part) if self._data else part
