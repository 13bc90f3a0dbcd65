"""Puts the model's name that a client asked for back into an answer. Pure.

Only the value of `model` changes, where it is the engine's name: at the top level, in `response`
(Responses API) and in `message` (Anthropic). Every other byte passes as it came, strings that look
alike included. In server-sent events every event is renamed, however many lines its data takes.
"""

import re
from typing import Any, Protocol

import msgspec

from .spans import STRING
from .walk import BOM, NAME, Walk

_LINE_END = re.compile(rb"\r\n?|\n")
_BLANK = (b"\n", b"\r")
_DATA = b"data:"
_NAMED = b'"%b"' % NAME.encode()
_MEMBER = re.compile(rb"%b\s*:\s*(%b)" % (_NAMED, STRING.pattern), re.DOTALL)


class _Asked(msgspec.Struct):
    """What a plain event says of its model."""

    model: Any = None


_read = msgspec.json.Decoder(_Asked).decode


class _Renaming(Protocol):
    def feed(self, piece: bytes) -> bytes: ...
    def flush(self) -> bytes: ...


class Rename:
    """Renames one answer. `feed` every piece, then `finish`, and pass on what they return.

    What is held back is part of a name or of an event's first bytes, never a whole event, and never
    longer than the longest spelling of `served`.
    """

    __slots__ = ("_text", "may_change")

    def __init__(
        self, asked: str, served: str, content_type: str = "", content_encoding: str = ""
    ) -> None:
        """`served`: the engine's name, which `asked` takes the place of."""
        kind = content_type.partition(";")[0].strip().lower()
        new = msgspec.json.encode(asked)
        self._text: _Renaming | None = None
        if content_encoding.strip().lower() in {"", "identity"} and asked != served:
            if kind == "text/event-stream":
                self._text = _Events(served, new)
            elif kind == "application/json" or kind.endswith("+json"):
                self._text = Walk(served, new)
        self.may_change = self._text is not None
        """False when every byte passes: the body is compressed or of another kind, or both names
        are the same. Otherwise its length may change."""

    def feed(self, piece: bytes) -> bytes:
        """The bytes to pass on after this piece; may be empty."""
        return piece if self._text is None else self._text.feed(piece)

    def finish(self) -> bytes:
        """The body is complete: what was held back."""
        return b"" if self._text is None else self._text.flush()


class _Events:
    """Server-sent events, each of whose data is one JSON text over one line or several."""

    __slots__ = ("_after_cr", "_in_data", "_new", "_old", "_prefix", "_started", "_walk")

    def __init__(self, old: str, new: bytes) -> None:
        self._old = old
        self._new = new
        self._walk: Walk | None = None  # of the event's data; None before its first line
        self._prefix: bytes | None = b""  # of the line; None once it is known what the line is
        self._in_data = False
        self._started = False  # a byte-order mark may come before that
        self._after_cr = False

    def feed(self, piece: bytes) -> bytes:
        out: list[bytes] = []
        at = 0
        if self._after_cr and piece:
            self._after_cr = False
            if piece.startswith(b"\n"):  # the other half of the last line's end
                out.append(b"\n")
                at = 1
        while at < len(piece):
            found = _LINE_END.search(piece, at)
            if found is None:
                out.append(self._part(piece[at:]))
                break
            line = piece[at : found.start()]
            at = found.end()
            renamed = self._plain(line) if piece.startswith(_BLANK, at) else None
            out += (self._part(line), self._line_ends()) if renamed is None else (renamed,)
            out.append(found[0])
            self._after_cr = at == len(piece) and found[0] == b"\r"
        return b"".join(out)

    def flush(self) -> bytes:
        """What was held back of the last line."""
        if self._in_data:
            assert self._walk
            return self._walk.flush()
        return self._prefix or b""

    def _plain(self, line: bytes) -> bytes | None:
        """An event's last line renamed the short way, or None when that is not safe.

        Safe is what engines write: all data in one line, `model` in it at most once, and nothing
        that could spell the word in another way.
        """
        first = self._walk is None and self._prefix == b"" and line.startswith(_DATA)
        if not first or b"\\u" in line:
            return None
        names = line.count(_NAMED)
        if not names:
            return line
        try:
            if names > 1 or _read(line[len(_DATA) :]).model != self._old:
                return None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        found = _MEMBER.search(line)
        assert found
        return line[: found.start(1)] + self._new + line[found.end(1) :]

    def _part(self, part: bytes) -> bytes:
        """More of the present line."""
        if self._prefix is None:
            if not self._in_data:
                return part
            assert self._walk
            return self._walk.feed(part)
        line = self._prefix + part
        begin = len(BOM) if not self._started and line.startswith(BOM) else 0
        data = begin + len(_DATA)
        if len(line) < data:
            self._prefix = line
            return b""
        self._prefix = None
        self._in_data = line.startswith(_DATA, begin)
        if not self._in_data:
            return line
        if self._walk is None:
            self._walk = Walk(self._old, self._new)
        return line[:data] + self._walk.feed(line[data:])

    def _line_ends(self) -> bytes:
        rest = self.flush()
        if self._prefix == b"":  # a blank line ends the event
            self._walk = None
        self._prefix, self._in_data, self._started = b"", False, True
        return rest
