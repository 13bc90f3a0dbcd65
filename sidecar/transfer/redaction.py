"""Takes the parameters of handoffs out of JSON while its bytes pass. Pure.

A filter is fed a text in whatever pieces it comes and gives the bytes to pass on at once. It holds
back a key, or a comma whose fate the next key decides: a few times `MAX_HELD` bytes at most.
Removed are the member and one comma; every other byte stays. What is not JSON passes unchanged.
"""

import re
from collections.abc import Collection
from enum import Enum, auto

import msgspec

from epp.bodies.spans import INNER

NAME = "kv_transfer_params"
MEDIA_NAME = "ec_transfer_params"
"""The same for what encoders made of images, audio and video."""
BOOTSTRAP = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
"""How SGLang's engines are told where they meet; members of requests only."""
IN_REQUEST_NAMES = frozenset({NAME, MEDIA_NAME, *BOOTSTRAP})
IN_ANSWER_NAMES = frozenset({NAME, MEDIA_NAME})
MAX_HELD = 1024
"""Longest spelling of a key that is looked at, and most whitespace kept around a member, in
bytes."""
MAX_NESTING = 4

IN_ANSWERS = frozenset({"response", "message"})
"""Objects in an answer that may hold the parameters one level down (responses, messages)."""

_PARAMS = re.compile(rb"(?:kv|ec)_transfer_params")
_BOOTSTRAP = re.compile(rb"bootstrap_(?:host|port|room)")
_ESCAPED = re.compile(rb"\\u00[5-7]")  # a letter or `_`
_SPACE = b" \t\r\n"
_BEFORE_VALUE = re.compile(rb"[ \t\r\n:]*")
_IN_STRING = re.compile(rb'[^"\\]*')
_OUTER = re.compile(rb'[^"{}\[\],]*')
_QUOTE, _COMMA = b'",'
_OPEN, _CLOSE = b"{}"
BOM = b"\xef\xbb\xbf"


def may_name(text: bytes) -> bool:
    """False only for a text that can spell none of the names that count in requests: neither as
    they are nor with escapes."""
    if may_name_in_answer(text):
        return True
    return text.find(b"bootstrap_") >= 0 and _BOOTSTRAP.search(text) is not None


def may_name_in_answer(text: bytes) -> bool:
    """The same of those that count in answers.

    Plain searches come first: they cost a tenth of a pattern's. They are no `in`, with which bytes
    try whether they look for a number, and make and drop an exception because they do not.
    """
    if text.find(b"_transfer_params") >= 0 and _PARAMS.search(text) is not None:
        return True
    if text.find(b"\\") < 0:  # one byte is found much faster than four
        return False
    return text.find(b"\\u00") >= 0 and _ESCAPED.search(text) is not None


class _At(Enum):
    START = auto()
    """Before the text's only value."""
    MEMBER = auto()
    """In a watched object, before a key or the closing brace."""
    KEY = auto()
    OPENING = auto()
    """Before a value that is watched too if it is an object."""
    VALUE = auto()
    PAST = auto()
    """After the value, or in something that is not JSON: everything passes."""


class JsonFilter:
    """One JSON text without the members `names` of its top-level object.

    Objects of the names `inside` are watched as well where they stand directly in a watched object.
    """

    __slots__ = (
        "_at",
        "_depth",
        "_dropping",
        "_escaped",
        "_held",
        "_in_string",
        "_inside",
        "_kept",
        "_key",
        "_names",
        "_out",
        "_tail",
    )

    def __init__(
        self,
        inside: Collection[str] = IN_ANSWERS,
        names: Collection[str] = IN_ANSWER_NAMES,
    ) -> None:
        self._inside = inside
        self._names = names
        self._at = _At.START
        self._kept: list[bool] = []  # for each watched object: whether a member has been passed
        self._held = bytearray()  # a comma and whitespace before the next key
        self._key = bytearray()
        self._tail = bytearray()  # whitespace since the last other byte of a dropped value
        self._dropping = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._out: list[bytes] = []

    def feed(self, piece: bytes) -> bytes:
        steps = {
            _At.START: self._start,
            _At.MEMBER: self._member,
            _At.KEY: self._in_key,
            _At.OPENING: self._opening,
            _At.VALUE: self._value,
            _At.PAST: self._rest,
        }
        at = 0
        while at < len(piece):
            at = steps[self._at](piece, at)
        passed = b"".join(self._out)
        self._out.clear()
        return passed

    def finish(self) -> bytes:
        rest = bytes(self._held + self._key)
        self._held.clear()
        self._key.clear()
        self._at = _At.PAST
        return rest

    def _rest(self, piece: bytes, at: int) -> int:
        self._out.append(piece[at:])
        return len(piece)

    def _start(self, piece: bytes, at: int) -> int:
        byte = piece[at]
        if byte == _OPEN:
            self._enter()
        elif byte not in _SPACE and byte not in BOM:
            self._at = _At.PAST
            return at
        self._out.append(piece[at : at + 1])
        return at + 1

    def _enter(self) -> None:
        self._kept.append(False)
        self._at = _At.MEMBER

    def _member(self, piece: bytes, at: int) -> int:
        byte = piece[at]
        if byte == _QUOTE:
            self._key += b'"'
            self._at = _At.KEY
        elif byte == _CLOSE:
            self._release(comma=True)
            self._kept.pop()
            self._out.append(b"}")
            self._at = _At.MEMBER if self._kept else _At.PAST
        elif byte in _SPACE or (byte == _COMMA and b"," not in self._held):
            if len(self._held) < MAX_HELD or byte == _COMMA:
                self._held.append(byte)
        else:
            self._release(comma=True)
            self._at = _At.PAST
            return at
        return at + 1

    def _release(self, *, comma: bool) -> None:
        self._out.append(bytes(self._held) if comma else bytes(self._held).replace(b",", b""))
        self._held.clear()

    def _in_key(self, piece: bytes, at: int) -> int:
        end = self._string_part(piece, at)
        self._key += piece[at:end]
        if not self._in_string:
            self._named()
        elif len(self._key) > MAX_HELD:  # too long for our name: the rest of it is like a value
            self._keep()
            self._at = _At.VALUE
        return end

    def _string_part(self, piece: bytes, at: int) -> int:
        """Offset after the string or, when it goes on in the next piece, of the piece's end."""
        self._in_string = True
        while at < len(piece):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = _IN_STRING.match(piece, at)
            assert found
            at = found.end()
            if at < len(piece):
                if piece[at] == _QUOTE:
                    self._in_string = False
                    return at + 1
                self._escaped = True
                at += 1
        return at

    def _named(self) -> None:
        """The key is complete: decide about its member."""
        try:
            name = msgspec.json.decode(self._key, type=str)
        except (msgspec.DecodeError, UnicodeDecodeError):
            name = ""
        self._at = _At.VALUE
        if name in self._names:
            self._dropping = True
            self._release(comma=False)
            self._key.clear()
            return
        self._keep()
        if name in self._inside and len(self._kept) < MAX_NESTING:
            self._at = _At.OPENING

    def _keep(self) -> None:
        self._release(comma=self._kept[-1])
        self._kept[-1] = True
        self._out.append(bytes(self._key))
        self._key.clear()

    def _opening(self, piece: bytes, at: int) -> int:
        found = _BEFORE_VALUE.match(piece, at)
        assert found
        end = found.end()
        if end < len(piece):
            if piece[end] == _OPEN:
                self._enter()
                end += 1
            else:
                self._at = _At.VALUE
        self._out.append(piece[at:end])
        return end

    def _value(self, piece: bytes, at: int) -> int:
        """Pass or drop up to the end of the value, which belongs to the object around it."""
        end = at
        while end < len(piece):
            if self._in_string:
                end = self._string_part(piece, end)
                continue
            found = (INNER if self._depth else _OUTER).match(piece, end)
            assert found
            end = found.end()
            if end == len(piece):
                break
            byte = piece[end]
            if byte == _QUOTE:
                self._in_string = True
            elif byte in b"{[":
                self._depth += 1
            elif byte in b"}]":
                if not self._depth:
                    self._at = _At.MEMBER
                    break
                self._depth -= 1
            else:  # a comma
                self._at = _At.MEMBER
                break
            end += 1
        self._valued(piece[at:end])
        return end

    def _valued(self, part: bytes) -> None:
        if not self._dropping:
            self._out.append(part)
            return
        solid = part.rstrip(_SPACE)
        if solid:
            self._tail.clear()
        self._tail += part[len(solid) :]
        del self._tail[MAX_HELD:]
        if self._at is _At.MEMBER:
            self._held += self._tail  # whitespace after the member stays
            self._tail.clear()
            self._dropping = False
