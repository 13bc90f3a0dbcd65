"""Puts the prefill engine's count of cached tokens into the answer of a split request. Pure.

A decode engine that pulled its KV counts all of the prompt as cached, or nothing, by its version.
What the client wants to know is what was not computed for it, and that only the prefill engine
knows. Where an answer tells no count of cached tokens none is added; all else keeps its bytes.
"""

import re
from collections.abc import Callable

from epp.bodies.spans import Body, NotAnObjectError

MAX_EVENT = 64 << 10
"""Bytes of one event that are held back; a longer one is none of usage and passes."""
MAX_JSON = 1 << 20
"""Bytes of an answer in one piece that are held back; a longer one passes as it is."""

Count = Callable[[], int | None]
"""Cached tokens of the prompt; None as long as nobody knows."""

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_ENDS = (b"\r\n\r\n", b"\n\n", b"\r\r")
_DATA = re.compile(rb"^data:[ \t]?([^\r\n]*)", re.MULTILINE)
_USAGE = b'"usage"'
_COUNTS = (b'"cached_tokens"', b'"cache_read_input_tokens"')
_COUNT = re.compile(rb"[0-9]+")
_HOLDERS = ("response", "message")
"""Objects that hold the usage one level down (responses, messages)."""
_DETAILS = ("prompt_tokens_details", "input_tokens_details")


class Recounted:
    """One answer. `feed` every piece, then `finish`."""

    __slots__ = ("_count", "_held", "_passing", "_stream")

    def __init__(self, count: Count, *, stream: bool) -> None:
        """`stream`: the answer is server-sent events; else it is one JSON text."""
        self._count = count
        self._stream = stream
        self._held = b""
        self._passing = False  # what is too long to be held goes through to its end

    def feed(self, piece: bytes) -> bytes:
        """The bytes to pass on after this piece; may be empty."""
        if not self._stream:
            return self._in_json(piece)
        if not self._held and piece.endswith(_ENDS) and piece.find(_USAGE) < 0:
            self._passing = False
            return piece
        text = self._held + piece
        out: list[bytes] = []
        at = 0
        for found in _END.finditer(text):
            event = text[at : found.end()]
            out.append(event if self._passing else self._event(event))
            self._passing = False
            at = found.end()
        self._held = text[at:]
        if self._passing or len(self._held) > MAX_EVENT:
            self._passing = True
            out.append(self._release())
        return b"".join(out)

    @property
    def rests(self) -> bool:
        """Whether it stands before an event."""
        return self._stream and not (self._held or self._passing)

    def finish(self) -> bytes:
        """The body is complete: what was held back."""
        rest = self._release()
        if self._passing:
            return rest
        return self._event(rest) if self._stream else self._text(rest)

    def _in_json(self, piece: bytes) -> bytes:
        self._held += piece
        if self._passing or len(self._held) > MAX_JSON:
            self._passing = True
            return self._release()
        return b""

    def _release(self) -> bytes:
        rest, self._held = self._held, b""
        return rest

    def _event(self, event: bytes) -> bytes:
        if event.find(_USAGE) < 0:
            return event
        found = _DATA.search(event)
        if found is None:
            return event
        begin, end = found.span(1)
        return event[:begin] + self._text(event[begin:end]) + event[end:]

    def _text(self, text: bytes) -> bytes:
        count = self._count()
        if count is None or _USAGE not in text or not any(name in text for name in _COUNTS):
            return text
        return recounted(text, count)


def recounted(text: bytes, cached: int) -> bytes:
    """This JSON object, in whose usage so many tokens were cached, as far as it tells a number."""
    number = b"%d" % cached
    try:
        answer = Body.read(text)
        changed = _edited(answer, "usage", lambda usage: _in_usage(usage, number))
        for name in _HOLDERS:
            answer = Body.read(changed)
            changed = _edited(
                answer,
                name,
                lambda holder: _edited(holder, "usage", lambda usage: _in_usage(usage, number)),
            )
    except NotAnObjectError:
        return text
    return changed


def _in_usage(usage: Body, number: bytes) -> bytes:
    changed = _numbered(usage, "cache_read_input_tokens", number)
    for name in _DETAILS:
        changed = _edited(
            Body.read(changed), name, lambda body: _numbered(body, "cached_tokens", number)
        )
    return changed


def _numbered(body: Body, name: str, number: bytes) -> bytes:
    value = body.value(name)
    if value is None or not _COUNT.fullmatch(value):
        return body.raw
    return body.edited(put={name: number})


def _edited(body: Body, name: str, edit: Callable[[Body], bytes]) -> bytes:
    """The text in which the object of this name is edited, if there is one."""
    value = body.value(name)
    if value is None or not value.startswith(b"{"):
        return body.raw
    return body.edited(put={name: edit(Body.read(value))})
