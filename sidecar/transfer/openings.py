"""Tells a good answer from a 200 whose stream opens with an error, before a byte is passed. Pure.

A pull that failed shows in a stream as an error event; in chat an event with nothing but the role
comes first, in the messages and responses APIs events that announce the answer. So the first bytes
of a split stream are held until one event says more than that. Nothing but the beginning is looked
at: later errors are the client's to read.

An engine that was asked whether enough of the prompt is in its cache says no by its finish reason,
in a stream or in JSON, and has then generated nothing.
"""

import re
from enum import Enum, auto

import msgspec

from sidecar.wire import EVENT, Choice

MAX_HELD = 64 << 10
"""Bytes that are held while undecided; a longer beginning is taken for good."""

_LINE_END = re.compile(rb"[\r\n]")
_DATA = b"data:"
_COLD = "cache_threshold"
_ANNOUNCING = frozenset(
    {
        "message_start",
        "ping",
        "content_block_start",
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    }
)
"""Types of events that come before any content, in the messages and the responses API."""
_FAILING = frozenset({"error", "response.failed"})


class Verdict(Enum):
    UNDECIDED = auto()
    GOOD = auto()
    ERROR_EVENT = auto()
    COLD = auto()


class Opening:
    """Holds the beginning of one 200. Feed pieces until `verdict` is decided, then take `held`."""

    __slots__ = ("_looked", "_whole", "held", "verdict")

    def __init__(self, content_type: str, *, probe: bool = False) -> None:
        """With `probe` JSON is held as well, for the engine may say that it is `COLD`."""
        kind = content_type.partition(";")[0].strip().lower()
        self._whole = probe and kind == "application/json"
        self.held = bytearray()
        undecided = self._whole or kind == "text/event-stream"
        self.verdict = Verdict.UNDECIDED if undecided else Verdict.GOOD
        self._looked = 0  # offset of the first line that has not been looked at

    def feed(self, piece: bytes) -> Verdict:
        self.held += piece
        while self.verdict is Verdict.UNDECIDED and not self._whole:
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
            last = bytes(self.held[self._looked :])
            said = _said(last) if self._whole else _verdict(last)
            self.verdict = Verdict.GOOD if said is Verdict.UNDECIDED else said
        return self.verdict


def _verdict(line: bytes) -> Verdict:
    """What one line of a stream says; lines without data say nothing."""
    if not line.startswith(_DATA):
        return Verdict.UNDECIDED
    return _said(line[len(_DATA) :])


def _said(text: bytes) -> Verdict:
    """What one JSON text of an answer says."""
    try:
        event = EVENT.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Verdict.GOOD
    if event.error is not None or event.object == "error" or event.type in _FAILING:
        return Verdict.ERROR_EVENT
    if event.type in _ANNOUNCING:
        return Verdict.UNDECIDED
    if event.choices and all(choice.finish_reason == _COLD for choice in event.choices):
        return Verdict.COLD
    if event.choices and all(_says_nothing(choice) for choice in event.choices):
        return Verdict.UNDECIDED
    return Verdict.GOOD


def _says_nothing(choice: Choice) -> bool:
    delta = choice.delta
    if delta is None or choice.finish_reason is not None:
        return False
    return not any(value for name, value in delta.items() if name != "role")
