"""Where each member of a JSON object stands in its text, so that edits leave all else as it was.
Pure.

`Body.read` accepts strict JSON only: what it cannot read is not split, and an engine's own answer
says why. Time is linear in the text; nesting is bounded by the decoder.
"""

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple, Self

import msgspec

from epp.errors import EppError

# Nothing possessive: nested, it matches too little before Python 3.11.5 (python/cpython#106052).
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
"""A whole string, quotes included."""
_GAP = re.compile(rb"[\s,:]*")
_SCALAR = re.compile(rb"[^\s,}\]]+")
INNER = re.compile(rb'(?:[^"{}\[\]]+|"[^"\\]*(?:\\.[^"\\]*)*")*', re.DOTALL)
"""Inside a value: all up to the next bracket, or up to a string that is not whole."""


_PLAIN = re.compile(rb'"([^"\\]*)"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*"|[^\s,"{}\[\]]+)', re.DOTALL)
"""A member whose name has no escapes and whose value holds no others: most are so."""
_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


class NotAnObjectError(EppError):
    """The text is not one JSON object in strict UTF-8 JSON, or nests too deeply."""

    reason = "not-json"


class Member(NamedTuple):
    """One member: its decoded name, and offsets of its key, its value and its end."""

    name: str
    key: int
    value: int
    end: int


class Body:
    """A JSON object as it was sent. Duplicate names are kept; the last of them counts."""

    __slots__ = ("_read", "fields", "raw")

    def __init__(self, raw: bytes, fields: Mapping[str, msgspec.Raw], readable: bytes) -> None:
        """`readable`: a text of the same length in which its members are found."""
        self.raw = raw
        self.fields = fields
        """The value of each name, undecoded."""
        self._read: bytes | tuple[Member, ...] = readable

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """Raises NotAnObjectError."""
        try:
            fields = _DECODER.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NotAnObjectError("The text is not a JSON object.") from error
        return cls(raw, fields, raw)

    def over(self, raw: bytes) -> Self:
        """The same members of another text, in which they stand at the same places."""
        return type(self)(raw, self.fields, self.raw)

    @property
    def members(self) -> tuple[Member, ...]:
        """In their order. They are looked for when they are first needed."""
        found = self._read
        if isinstance(found, bytes):
            found = self._read = _members(found)
        return found

    def value(self, name: str) -> bytes | None:
        """The text of this member's value, or None when there is no such member."""
        found = self.fields.get(name)
        return None if found is None else bytes(found)

    def edited(self, *, put: Mapping[str, bytes], drop: Collection[str] = ()) -> bytes:
        """This text with the members `drop` removed and the values of `put` in place.

        A name of `put` that stands in the text keeps its place; others are added at the end, right
        before the closing brace.
        """
        fields = self.fields
        if fields.keys().isdisjoint(put) and fields.keys().isdisjoint(drop):
            return self._extended(put, first=not fields)
        pieces: list[bytes] = []
        done = 0  # offset up to which the text has been taken over
        kept = 0  # end of the last member that stays; 0 while there is none
        missing = dict(put)
        for number, member in enumerate(self.members):
            if member.name in drop:
                if kept:
                    pieces.append(self.raw[done:kept])
                    done = member.end
                else:
                    pieces.append(self.raw[done : member.key])
                    done = member.end
                    if number + 1 < len(self.members):
                        done = self.members[number + 1].key
                continue
            if member.name in put:
                pieces += (self.raw[done : member.value], put[member.name])
                done = member.end
                missing.pop(member.name, None)
            kept = member.end
        return b"".join((*pieces, self._extended(missing, first=not kept, since=done)))

    def _extended(self, put: Mapping[str, bytes], *, first: bool, since: int = 0) -> bytes:
        """This text from an offset on, with these members at its end; `first`: no others stand
        before them."""
        raw = self.raw
        close = raw.rindex(b"}")
        added = [b"%b:%b" % (msgspec.json.encode(name), value) for name, value in put.items()]
        if added and not first:
            added.insert(0, b"")
        return b"".join((raw[since:close], b",".join(added), raw[close:]))


def _members(raw: bytes) -> tuple[Member, ...]:
    """Members of an object that is known to be valid."""
    found = []
    at = _gap(raw, raw.index(b"{") + 1)
    while raw[at] != 0x7D:  # }
        plain = _PLAIN.match(raw, at)
        if plain is not None:
            value, end = plain.span(2)
            found.append(Member(plain[1].decode(), at, value, end))
            at = _gap(raw, end)
            continue
        key_end = _string(raw, at)
        value = _gap(raw, key_end)
        end = _value_end(raw, value)
        found.append(Member(_TEXT.decode(raw[at:key_end]), at, value, end))
        at = _gap(raw, end)
    return tuple(found)


def _gap(raw: bytes, at: int) -> int:
    found = _GAP.match(raw, at)
    assert found
    return found.end()


def _string(raw: bytes, at: int) -> int:
    """Offset after the string that begins at `at`."""
    found = STRING.match(raw, at)
    assert found
    return found.end()


def _value_end(raw: bytes, at: int) -> int:
    """Offset after the value that begins at `at`."""
    if raw[at] == 0x22:  # "
        return _string(raw, at)
    if raw[at] not in b"{[":
        found = _SCALAR.match(raw, at)
        assert found
        return found.end()
    depth = 0
    while True:
        depth += 1 if raw[at] in b"{[" else -1
        at += 1
        if not depth:
            return at
        found = INNER.match(raw, at)
        assert found
        at = found.end()
