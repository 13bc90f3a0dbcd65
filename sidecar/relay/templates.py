"""Reads a head in one step when all but its values was read before. Pure.

A gateway sends the same names with every request, an engine with every answer. A template is made
of a head that the parser took (`requests`, `answers`), and takes the next one if that differs from
it in values only. What it does not take is the parser's to read, so that it may be much stricter:
 1. the first line is the same, but for a path without a query;
 2. the names are the same in the same spelling and order, each with one `: ` behind it;
 3. no value is empty, begins or ends with a blank, or holds a control character;
 4. a Content-Length is digits, `Connection` says keep-alive, and nothing else speaks of framing or
    of another protocol;
 5. all together is no longer than one field may be.
What it takes the parser takes as well, and reads alike: the tests hold both against each other.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from sidecar.http.headers import CONTENT_LENGTH, is_printable
from sidecar.http.shapes import Shape

MAX_DIGITS = 19
"""Of a Content-Length."""
USES = 16
"""Heads of one kind after which a pattern is made: that costs as much as some ten heads."""
_CACHED = 256
_MAX_NAMES = 48
_MAX_NAMES_BYTES = 1024
PATH = rb"(/[A-Za-z0-9/_.~-]*)"
"""The only part of a first line that may differ."""
_VALUE = rb": (\S.*)\r\n"
_VALUES = {
    CONTENT_LENGTH: b": ([0-9]{1,%d})\r\n" % MAX_DIGITS,
    b"connection": rb": ([Kk]eep-[Aa]live)\r\n",
}
_FRAMING = (b"transfer-encoding", b"upgrade", b"proxy-connection")

Read = tuple[tuple[bytes, ...], int]
"""What was left open, one value for each: a path, if the first line has one, and then the fields;
and the bytes of the head."""


class Template:
    """One first line, as a pattern, and one sequence of names."""

    __slots__ = ("_ends", "_match", "_names", "_start", "_uses")

    def __init__(self, start: bytes, names: tuple[bytes, ...]) -> None:
        self._start = start
        self._names = names
        self._ends = 2 * (len(names) + 2)  # two bytes for each line, and for the empty one
        self._uses = 0
        self._match: Callable[[bytes], re.Match[bytes] | None] | None = None

    def read(self, data: bytes, most: int) -> Read | None:
        """The head that these bytes begin with, if it is one of this kind, with `most` bytes."""
        if self._match is None:
            self._uses += 1
            if self._uses < USES:
                return None
            self._match = re.compile(self._pattern()).match
        found = self._match(data)
        if found is None:
            return None
        end = found.end()
        head = data[:end]
        if end > most or head.find(b" \r") >= 0 or head.find(b"\t\r") >= 0:
            return None
        return (found.groups(), end) if is_printable(head, lines=self._ends) else None

    def _pattern(self) -> bytes:
        fields = [re.escape(name) + _VALUES.get(name.lower(), _VALUE) for name in self._names]
        return b"".join((self._start, rb"\r\n", *fields, rb"\r\n"))


def template_of(start: bytes, shape: Shape) -> Template | None:
    """The template of heads that begin with this pattern and have this shape."""
    names = shape.names
    if len(names) > _MAX_NAMES or shape.size > _MAX_NAMES_BYTES:
        return None
    return None if any(name in shape.at for name in _FRAMING) else _template(start, names)


_template = lru_cache(maxsize=_CACHED)(Template)
