"""Tells a good answer from a 200 whose stream opens with an error, before a byte is passed. Pure.

A pull that failed shows in a stream as an error event; in chat an event with nothing but the role
comes first. So the first bytes of a split stream are held until one event says more than that.
Nothing but the beginning is looked at: later errors are the client's to read.
"""

import re
from enum import Enum, auto
from typing import Any

import msgspec

MAX_HELD = 64 << 10
"""Bytes that are held while undecided; a longer beginning is taken for good."""

_LINE_END = re.compile(rb"[\r\n]")
_DATA = b"data:"


class Verdict(Enum):
    UNDECIDED = auto()
    GOOD = auto()
    ERROR_EVENT = auto()


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    finish_reason: Any = None


class _Event(msgspec.Struct):
    error: Any = None
    object: Any = None
    choices: list[_Choice] | None = None


class Opening:
    """Holds the beginning of one 200. Feed pieces until `verdict` is decided, then take `held`."""

    __slots__ = ("_looked", "held", "verdict")

    def __init__(self, content_type: str) -> None:
        stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self.held = bytearray()
        self.verdict = Verdict.UNDECIDED if stream else Verdict.GOOD
        self._looked = 0  # offset of the first line that has not been looked at

    def feed(self, piece: bytes) -> Verdict:
        self.held += piece
        while self.verdict is Verdict.UNDECIDED:
            end = _LINE_END.search(self.held, self._looked)
            if not end:
                break
            self.verdict = _verdict(bytes(self.held[self._looked : end.start()]))
            self._looked = end.end()
        if self.verdict is Verdict.UNDECIDED and len(self.held) > MAX_HELD:
            self.verdict = Verdict.GOOD
        return self.verdict

    def finish(self) -> Verdict:
        """The answer ended. Without any word of an error it is good, however short."""
        if self.verdict is Verdict.UNDECIDED:
            last = _verdict(bytes(self.held[self._looked :]))
            self.verdict = Verdict.ERROR_EVENT if last is Verdict.ERROR_EVENT else Verdict.GOOD
        return self.verdict


def _verdict(line: bytes) -> Verdict:
    """What one line of a stream says; lines without data say nothing."""
    if not line.startswith(_DATA):
        return Verdict.UNDECIDED
    try:
        event = msgspec.json.decode(line[len(_DATA) :], type=_Event)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Verdict.GOOD
    if event.error is not None or event.object == "error":
        return Verdict.ERROR_EVENT
    if event.choices and all(_says_nothing(choice) for choice in event.choices):
        return Verdict.UNDECIDED
    return Verdict.GOOD


def _says_nothing(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None or choice.finish_reason is not None:
        return False
    return not any(value for name, value in delta.items() if name != "role")
