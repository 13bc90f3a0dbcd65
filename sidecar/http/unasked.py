"""Takes the one event of usage that a client did not ask for out of its stream. Pure.

Every other byte passes as it came. Held back is an event that is not whole yet, a whole one never.
An engine that tells usage beside its tokens does so of its own accord: nothing is taken out then.
"""

import re

from epp.bodies.usage import Carries, carried

MAX_HELD = 64 << 10
"""Bytes of one event that are held back; a longer one is none of usage and passes."""

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_ENDS = (b"\r\n\r\n", b"\n\n", b"\r\r")
_LINE_END = re.compile(rb"[\r\n]+")
_DATA = b"data:"
_NAME = b'"usage"'


class WithoutUsage:
    """One stream of server-sent events. `feed` every piece, then `finish`."""

    __slots__ = ("_done", "_held", "_long")

    def __init__(self) -> None:
        self._held = b""
        self._long = False  # inside an event that is too long to be held
        self._done = False  # taken out, or not to be

    def feed(self, piece: bytes) -> bytes:
        """The bytes to pass on after this piece; may be empty."""
        if self._done or (not self._held and piece.endswith(_ENDS) and piece.find(_NAME) < 0):
            self._long = False
            return piece
        text = self._held + piece
        out: list[bytes] = []
        at = 0
        for found in _END.finditer(text):
            if self._long or self._may_pass(text[at : found.start()]):
                out.append(text[at : found.end()])
            self._long = False
            at = found.end()
        self._held = text[at:]
        if self._done or self._long or len(self._held) > MAX_HELD:
            self._long = True
            out.append(self._release())
        return b"".join(out)

    @property
    def rests(self) -> bool:
        """Whether it stands before an event, or lets everything pass."""
        return self._done or not (self._held or self._long)

    def finish(self) -> bytes:
        """The body is complete: what was held back. An event that was cut off passes."""
        return self._release()

    def _release(self) -> bytes:
        rest, self._held = self._held, b""
        return rest

    def _may_pass(self, event: bytes) -> bool:
        if self._done or event.find(_NAME) < 0:
            return True
        data = [line for line in _LINE_END.split(event) if line.startswith(_DATA)]
        carries = carried(data[0][len(_DATA) :]) if len(data) == 1 else Carries.NOTHING
        self._done = carries is not Carries.NOTHING
        return carries is not Carries.ALONE
