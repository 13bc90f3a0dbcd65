"""Where each member of a JSON object stands in its text, so that edits leave all else as it was.
Pure.

`Body.read` accepts strict JSON only: what it cannot read is not split, and an engine's own answer
says why. Time is linear in the text; nesting is bounded by the decoder.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import msgspec

from epp.errors import EppError

# Nothing possessive: nested, it matches too little before Python 3.11.5 (python/cpython#106052).
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
"""A whole string, quotes included."""
_GAP = re.compile(rb"[\s,:]*")
_SCALAR = re.compile(rb"[^\s,}\]]+")
INNER = re.compile(rb'(?:[^"{}\[\]]+|"[^"\\]*(?:\\.[^"\\]*)*")*', re.DOTALL)
"""Inside a value: all up to the next bracket, or up to a string that is not whole."""
_NAMED = re.compile(rb'[\s,]*"([^"\\]*)"\s*:\s*')
"""What comes before a value, where the name has no escapes."""
_AFTER = b",} \t\r\n"
"""What may come right behind a value."""
_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


class NotAnObjectError(EppError):
    """The text is not one JSON object in strict UTF-8 JSON, or nests too deeply."""

    reason = "not-json"


@dataclass(slots=True)
class Member:
    """One member: its decoded name, and offsets of its key, its value and its end. Never changed
    once it is made."""

    name: str
    key: int
    value: int
    end: int


class Body:
    """A JSON object as it was sent. Duplicate names are kept; the last of them counts."""

    __slots__ = ("_members", "_readable", "fields", "raw")

    def __init__(self, raw: bytes, fields: Mapping[str, msgspec.Raw], readable: bytes) -> None:
        """`readable`: a text of the same length in which its members are found."""
        self.raw = raw
        self.fields = fields
        """The value of each name, undecoded."""
        self._readable = readable
        self._members: tuple[Member, ...] | None = None

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
        return type(self)(raw, self.fields, self._readable)

    @property
    def members(self) -> tuple[Member, ...]:
        """In their order. They are looked for when they are first needed."""
        found = self._members
        if found is None:
            found = self._members = _members(self._readable, self.fields)
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
                    pieces.append(self.raw[done : max(done, kept)])
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
        added = b",".join([_key(name) + value for name, value in put.items()])
        comma = b"" if first or not added else b","
        return b"".join((raw[since:close], comma, added, raw[close:]))


def _members(raw: bytes, fields: Mapping[str, msgspec.Raw]) -> tuple[Member, ...]:
    """Members of an object that is known to be valid, and whose decoder found these values.

    Where the value of a name stands where it is looked for, its end is known by its length; a name
    that stands twice may have another one there.
    """
    found: list[Member] = []
    at = raw.index(b"{") + 1
    while True:
        named = _NAMED.match(raw, at)
        if named is None:
            at = _gap(raw, at)
            if raw[at] == 0x7D:  # }
                return tuple(found)
            key, key_end = at, _string(raw, at)
            name, value = _TEXT.decode(raw[at:key_end]), _gap(raw, key_end)
        else:
            name, key, value = named[1].decode(), named.start(1) - 1, named.end()
        text = bytes(fields[name])
        end = value + len(text)
        if not raw.startswith(text, value) or raw[end] not in _AFTER:
            end = _value_end(raw, value)
        found.append(Member(name, key, value, end))
        at = end


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


@lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    """A name that is put into a text, up to its value."""
    return msgspec.json.encode(name) + b":"
