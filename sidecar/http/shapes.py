"""What the names of a request's fields say, worked out once for each sequence of names. Pure.

A gateway sends the same names with every request, and only their values differ: so which fields an
engine gets, and where those stand that matter here, is looked up and not gone through again.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter

from . import headers

_CACHED = 1024
_MAX_CACHED_BYTES = 4096
"""Longest names, all together, of a shape that is remembered: clients choose them."""


class Shape:
    """One sequence of names. Values are given in the same order."""

    __slots__ = ("_lines", "_passes", "at", "size")

    def __init__(self, names: tuple[bytes, ...]) -> None:
        self.size = sum(map(len, names))
        """Bytes of all names."""
        self.at: dict[bytes, tuple[int, ...]] = {}
        """Where a name stands, in lower case."""
        lines: list[bytes] = []
        passes: list[int] = []
        for number, name in enumerate(names):
            key = name.lower()
            self.at[key] = (*self.at.get(key, ()), number)
            if headers.is_identity_only(key):
                lines.append(name.replace(b"%", b"%%") + b": identity\r\n")
            elif headers.passes_beside_length(key):
                lines.append(name.replace(b"%", b"%%") + b": %b\r\n")
                passes.append(number)
        lines.append(b"content-length: %d\r\n")
        self._lines = b"".join(lines)
        self._passes = passes if len(passes) < 2 else itemgetter(*passes)

    def first(self, name: bytes, values: Sequence[bytes]) -> bytes | None:
        """The first value of a field. `name` in lower case."""
        at = self.at.get(name)
        return None if at is None else values[at[0]]

    def engine_lines(self, values: Sequence[bytes], length: int) -> bytes:
        """What `headers.for_engine` gives, as it is written, where `Connection` names nothing."""
        passes = self._passes
        if isinstance(passes, list):
            return self._lines % (*(values[number] for number in passes), length)
        return self._lines % (*passes(values), length)


_remembered = lru_cache(maxsize=_CACHED)(Shape)


def shape_of(names: tuple[bytes, ...]) -> Shape:
    """The shape of these names. Long ones are not remembered."""
    return _remembered(names) if sum(map(len, names)) <= _MAX_CACHED_BYTES else Shape(names)
