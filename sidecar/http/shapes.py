"""What the names of a message's fields say, worked out once for each sequence of names. Pure.

A gateway sends the same names with every request, an engine with every answer, and only their
values differ: so which fields pass, and where those stand that matter here, is looked up and not
gone through again.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter

from epp.protocol import DATA_PARALLEL, ENCODERS, HANDOFF, KV_SOURCE, PREFILLER
from sidecar.transfer.legs import LEG_HEADER

from . import headers

_CACHED = 1024
_MAX_CACHED_BYTES = 4096
"""Longest names, all together, of a shape that is remembered: clients choose them."""
_ASKING = frozenset(
    name.encode()
    for name in (
        *(PREFILLER, ENCODERS, DATA_PARALLEL, LEG_HEADER, KV_SOURCE, HANDOFF),
        *("x-data-parallel-rank", "expect", "upgrade", "content-encoding"),
    )
)
"""Fields of requests that ask for more than to be passed on."""
_SPLITS, _SEALS = {PREFILLER.encode()}, {HANDOFF.encode()}


class _Lines:
    """Some fields as they are written, each with its line's end: names stand, values are put in."""

    __slots__ = ("_numbers", "_text")

    def __init__(self, names: Sequence[bytes], numbers: Sequence[int], fixed: bytes = b"") -> None:
        """`numbers`: which of the names; `fixed` is written behind them."""
        escaped = [name.replace(b"%", b"%%") for name in names]
        self._text = b"".join([*(escaped[one] + b": %b\r\n" for one in numbers), fixed])
        self._numbers = itemgetter(*numbers) if len(numbers) > 1 else list(numbers)

    def of(self, values: Sequence[bytes]) -> bytes:
        numbers = self._numbers
        if isinstance(numbers, list):
            return self._text % tuple([values[one] for one in numbers])
        found: tuple[bytes, ...] = numbers(values)
        return self._text % found


class Shape:
    """One sequence of names. Values are given in the same order."""

    __slots__ = ("at", "names", "size")

    def __init__(self, names: tuple[bytes, ...]) -> None:
        self.names = names
        self.size = sum(map(len, names))
        """Bytes of all names."""
        self.at: dict[bytes, tuple[int, ...]] = {}
        """Where a name stands, in lower case."""
        for number, name in enumerate(names):
            key = name.lower()
            self.at[key] = (*self.at.get(key, ()), number)

    def first(self, name: bytes, values: Sequence[bytes]) -> bytes | None:
        """The first value of a field. `name` in lower case."""
        at = self.at.get(name)
        return None if at is None else values[at[0]]


class RequestShape(Shape):
    """The names of a request's fields."""

    __slots__ = ("_legs", "_lines", "is_plain", "splits")

    def __init__(self, names: tuple[bytes, ...]) -> None:
        super().__init__(names)
        self._legs: _Lines | None = None  # made when a request is split
        keys = [name.lower() for name in names]
        passes = [at for at, key in enumerate(keys) if headers.passes_as_it_is(key)]
        asked = [name for name in names if headers.is_identity_only(name.lower())]
        fixed = b"".join([name.replace(b"%", b"%%") + b": identity\r\n" for name in asked])
        self._lines = _Lines(names, passes, fixed)
        self.is_plain = _ASKING.isdisjoint(self.at) and b"host" in self.at
        """Whether no field asks for more than to be passed on; one of HTTP/1.0 may name no host."""
        asks = _ASKING.intersection(self.at)
        self.splits = asks - _SEALS == _SPLITS and b"host" in self.at
        """Whether they ask for a split and for nothing else."""

    def engine_lines(self, values: Sequence[bytes], length: int) -> bytes:
        """What `headers.for_engine` gives, as it is written, where `Connection` names nothing."""
        return b"%bcontent-length: %d\r\n" % (self._lines.of(values), length)

    def leg_lines(self, values: Sequence[bytes]) -> bytes:
        """What all legs of a request have in common of `headers.for_leg`, as it is written, where
        `Connection` names nothing: all but what a leg has a value of its own for."""
        lines = self._legs
        if lines is None:
            names = self.names
            passes = [at for at, name in enumerate(names) if headers.is_of_all_legs(name.lower())]
            lines = self._legs = _Lines(names, passes)
        return lines.of(values)

    def lines_of(self, name: bytes, values: Sequence[bytes]) -> bytes:
        """The fields of this name (in lower case) as they are written."""
        at = self.at.get(name, ())
        return b"".join([b"%b: %b\r\n" % (self.names[one], values[one]) for one in at])


class AnswerShape(Shape):
    """The names of an answer's fields."""

    __slots__ = ("_lines", "_of_content", "is_dated", "is_plain")

    def __init__(self, names: tuple[bytes, ...]) -> None:
        super().__init__(names)
        keys = [name.lower() for name in names]
        passes = [at for at, key in enumerate(keys) if headers.passes_back_beside_length(key)]
        self._lines = _Lines(names, passes)
        first = [self.at.get(name, (None,))[0] for name in headers.OF_CONTENT]
        self._of_content = first
        self.is_dated = b"date" in self.at
        self.is_plain = b"connection" not in self.at
        """Whether no value names fields that must not pass."""

    def content(self, values: Sequence[bytes]) -> headers.Content:
        """What `headers.content_of` gives."""
        kind, coding, length = [None if at is None else values[at] for at in self._of_content]
        return headers.content(kind, coding, length)

    def client_lines(self, values: Sequence[bytes]) -> bytes:
        """What `headers.for_client` gives, as it is written, without the length; where it
        `is_plain`."""
        return self._lines.of(values)


_requests = lru_cache(maxsize=_CACHED)(RequestShape)
_answers = lru_cache(maxsize=_CACHED)(AnswerShape)


def request_shape(names: tuple[bytes, ...]) -> RequestShape:
    """The shape of a request with these names. Long ones are not remembered."""
    return _requests(names) if sum(map(len, names)) <= _MAX_CACHED_BYTES else RequestShape(names)


def answer_shape(names: tuple[bytes, ...]) -> AnswerShape:
    """The shape of an answer with these names. Long ones are not remembered."""
    return _answers(names) if sum(map(len, names)) <= _MAX_CACHED_BYTES else AnswerShape(names)
