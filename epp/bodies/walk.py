"""Walks through one JSON text while its bytes pass, and puts another value in place of a name.
Pure.

Nothing is parsed that need not be: values are skipped by their brackets and quotes. Held back are
only a key, or a value that may be the name, while it is not whole: never more bytes than the
longest spelling of what is looked for. What is not JSON passes unchanged.
"""

import re
from collections.abc import Callable
from enum import Enum, auto

import msgspec

from .spans import INNER, STRING

NAME = "model"
INSIDE = frozenset({"response", "message"})
"""Top-level objects that name the model, too: in events of the Responses API, and in Anthropic's
`message_start`."""

BOM = b"\xef\xbb\xbf"
_SPELLING = 6
"""Bytes of the longest spelling of one UTF-16 unit: `\\u006d`."""

_STRING_REST = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_BEFORE_TEXT = re.compile(rb"[\s\xef\xbb\xbf]*")
_BEFORE_KEY = re.compile(rb"[\s,]*")
_BEFORE_VALUE = re.compile(rb"[\s:]*")
_OUTER = re.compile(rb'[^"{}\[\],]*')
_QUOTE, _COMMA, _OPEN, _CLOSE = b'",{}'


def longest_spelling(text: str) -> int:
    """Bytes of the longest JSON string that means `text`."""
    return _SPELLING * (len(text.encode("utf-16-le", "surrogatepass")) // 2) + 2


_LONGEST_KEY = max(map(longest_spelling, (NAME, *INSIDE)))


class _At(Enum):
    START = auto()
    """Before the text's only value."""
    KEY = auto()
    """In a watched object, before a key or the closing brace."""
    NAMED = auto()
    """Before the value of the member `NAME`."""
    OPENING = auto()
    """Before a value that is watched, too, if it is an object."""
    VALUE = auto()
    STRING = auto()
    """Inside a string of a value, or inside a key that is too long to matter."""
    PAST = auto()
    """After the value, or in something that is not JSON: everything passes."""


class Walk:
    """One JSON text in which the member `NAME` with the value `old` gets the JSON text `new`.

    `feed` gives the bytes to pass on; `flush` those that were held back.
    """

    __slots__ = ("_at", "_depth", "_held", "_level", "_longest", "_new", "_old", "_out", "_steps")

    def __init__(self, old: str, new: bytes) -> None:
        self._old = old
        self._new = new
        self._longest = longest_spelling(old)
        self._at = _At.START
        self._level = 0  # watched objects that are open
        self._depth = 0  # brackets that are open inside the present value
        self._held = b""
        self._out: list[bytes] = []
        self._steps: dict[_At, Callable[[bytes, int], int]] = {
            _At.START: self._start,
            _At.KEY: self._key,
            _At.NAMED: self._named,
            _At.OPENING: self._opening,
            _At.VALUE: self._value,
            _At.STRING: self._string,
            _At.PAST: self._past,
        }

    def feed(self, piece: bytes) -> bytes:
        piece = self._held + piece
        self._held = b""
        at = 0
        while at < len(piece):
            at = self._steps[self._at](piece, at)
        passed = b"".join(self._out)
        self._out.clear()
        return passed

    def flush(self) -> bytes:
        """The text ends here, or its line does, over which no key and no string goes on."""
        rest, self._held = self._held, b""
        if rest or self._at is _At.STRING:
            self._at = _At.PAST
        return rest

    # Each step passes on or holds back what it looked at, and returns where the next one begins.

    def _pass(self, piece: bytes, at: int, end: int) -> int:
        self._out.append(piece[at:end])
        return end

    def _hold(self, piece: bytes, at: int) -> int:
        self._held = piece[at:]
        return len(piece)

    def _past(self, piece: bytes, at: int) -> int:
        return self._pass(piece, at, len(piece))

    def _start(self, piece: bytes, at: int) -> int:
        end = _end(_BEFORE_TEXT, piece, at)
        if end < len(piece):
            self._at = _At.KEY if piece[end] == _OPEN else _At.PAST
            self._level = 1
            end += 1
        return self._pass(piece, at, end)

    def _key(self, piece: bytes, at: int) -> int:
        begin = self._pass(piece, at, _end(_BEFORE_KEY, piece, at))
        if begin == len(piece):
            return begin
        if piece[begin] == _CLOSE:
            self._level -= 1
            self._at = _At.VALUE if self._level else _At.PAST
            return self._pass(piece, begin, begin + 1)
        if piece[begin] != _QUOTE:
            self._at = _At.PAST
            return begin
        found = STRING.match(piece, begin)
        if found is None:
            return self._open_string(piece, begin, _LONGEST_KEY)
        name = _text(found[0]) if len(found[0]) <= _LONGEST_KEY else None
        self._at = _At.VALUE
        if name == NAME:
            self._at = _At.NAMED
        elif name in INSIDE and self._level == 1:
            self._at = _At.OPENING
        return self._pass(piece, begin, found.end())

    def _open_string(self, piece: bytes, at: int, longest: int) -> int:
        """A string begins here and is not whole: hold it back while it may matter."""
        if len(piece) - at < longest:
            return self._hold(piece, at)
        self._at = _At.STRING
        return self._pass(piece, at, at + 1)

    def _named(self, piece: bytes, at: int) -> int:
        begin = self._pass(piece, at, _end(_BEFORE_VALUE, piece, at))
        if begin == len(piece):
            return begin
        self._at = _At.VALUE
        if piece[begin] != _QUOTE:
            return begin
        found = STRING.match(piece, begin)
        if found is None:
            self._at = _At.NAMED
            return self._open_string(piece, begin, self._longest)
        if len(found[0]) <= self._longest and _text(found[0]) == self._old:
            self._out.append(self._new)
            return found.end()
        return self._pass(piece, begin, found.end())

    def _opening(self, piece: bytes, at: int) -> int:
        end = _end(_BEFORE_VALUE, piece, at)
        if end < len(piece):
            self._at = _At.VALUE
            if piece[end] == _OPEN:
                self._at = _At.KEY
                self._level += 1
                end += 1
        return self._pass(piece, at, end)

    def _value(self, piece: bytes, at: int) -> int:
        """Up to the end of the value, which belongs to the object around it."""
        end = at
        while True:
            end = _end(INNER if self._depth else _OUTER, piece, end)
            if end == len(piece):
                break
            byte = piece[end]
            if byte == _QUOTE:
                found = STRING.match(piece, end)
                if found is None:
                    self._at = _At.STRING
                    end += 1
                    break
                end = found.end()
                continue
            if not self._depth and byte in b"},]":
                self._at = _At.KEY
                break
            self._depth += {0x7B: 1, 0x5B: 1}.get(byte, -1)
            end += 1
        return self._pass(piece, at, end)

    def _string(self, piece: bytes, at: int) -> int:
        end = _end(_STRING_REST, piece, at)
        if end == len(piece):
            return self._pass(piece, at, end)
        if piece[end] != _QUOTE:  # a backslash; what it escapes comes with the next piece
            self._pass(piece, at, end)
            return self._hold(piece, end)
        self._at = _At.VALUE
        return self._pass(piece, at, end + 1)


def _end(pattern: re.Pattern[bytes], piece: bytes, at: int) -> int:
    """Offset after what `pattern`, which matches everywhere, finds at `at`."""
    found = pattern.match(piece, at)
    assert found
    return found.end()


def _text(spelling: bytes) -> str | None:
    """What a JSON string means, or None when it is none."""
    try:
        return msgspec.json.decode(spelling, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
