"""Read what an answer says about itself while its bytes pass. Pure; never changes a byte.

`ResponseWatch` is fed a copy of the body in whatever pieces the engine sent and finds `usage` in
JSON and in server-sent events. Whatever it cannot read is "not known", never an error.
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import msgspec

from .wire import TOLD

MAX_CARRY = 1 << 20
"""Bytes of one JSON body or one event line that are held back for reading."""
MAX_COUNT = (1 << 32) - 1

_LINE_END = re.compile(rb"[\r\n]")
_LINE_ENDS = (b"\n", b"\r")
_DATA = b"data:"
_NAME = b'"usage"'


@dataclass(slots=True)
class Usage:
    """Token counts as the engine reported them; None is not known. Never changed once it is
    made."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


_NOTHING = Usage()


class Unknown(Enum):
    """Why an answer's usage is not known. The values are metric labels."""

    ABSENT = "absent"
    """Readable, but it holds no usage."""
    COMPRESSED = "compressed"
    TOO_LARGE = "too-large"
    OPAQUE = "opaque"
    """Neither JSON nor server-sent events."""


class Carries(Enum):
    """What one event of a stream says about usage."""

    NOTHING = "nothing"
    BESIDE = "beside"
    """Usage, and something of the answer as well (vLLM's `continuous_usage_stats`)."""
    ALONE = "alone"
    """Usage and no choices: the event that `stream_options.include_usage` asks for."""


def carried(data: bytes) -> Carries:
    """What an event with this data says about usage; looked at only where the word stands."""
    if data.find(_NAME) < 0:
        return Carries.NOTHING
    try:
        event = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Carries.NOTHING
    if not isinstance(_item(event, "usage"), dict):
        return Carries.NOTHING
    return Carries.ALONE if _item(event, "choices") == [] else Carries.BESIDE


class ResponseWatch:
    """Watches one response body. `feed` every piece, then ask `finish` and `unknown`.

    In server-sent events each line of data is one JSON text, as every engine writes it.
    """

    __slots__ = ("_blind", "_carry", "_max_carry", "_skipping", "_sse", "_usage", "unknown")

    def __init__(
        self, content_type: str = "", content_encoding: str = "", *, max_carry: int = MAX_CARRY
    ) -> None:
        self.unknown: Unknown | None
        """Why usage is not known; None once it was found."""
        self._sse, self.unknown = _readable(content_type, content_encoding)
        self._max_carry = max_carry
        self._carry: bytearray | bytes = b""
        self._skipping = False
        self._usage = _NOTHING
        self._blind = self.unknown is not Unknown.ABSENT

    def feed(self, piece: bytes) -> None:
        """Look at the next bytes of the body."""
        if self._blind:
            return
        if self._sse:
            whole = not self._carry and not self._skipping and piece.endswith(_LINE_ENDS)
            if not whole or piece.find(_NAME) >= 0:
                self._feed_lines(piece)
        elif not self._skipping:
            if len(self._carry) + len(piece) > self._max_carry:
                self._give_up()
            else:
                self._keep(piece)

    @property
    def rests(self) -> bool:
        """Whether it stands before a line of a stream, or looks at nothing."""
        return self._blind or (self._sse and not (self._carry or self._skipping))

    def finish(self) -> Usage:
        """The body is complete: what it said."""
        carry, self._carry = bytes(self._carry), b""
        if carry and not self._skipping:
            if self._sse:
                self._read_line(carry)
            else:
                self._read_json(carry)
        return self._usage

    def _keep(self, piece: bytes) -> None:
        """Most answers in one piece are never copied."""
        if not self._carry:
            self._carry = piece
        elif isinstance(self._carry, bytes):
            self._carry = bytearray(self._carry) + piece
        else:
            self._carry += piece

    def _feed_lines(self, piece: bytes) -> None:
        """Cut the stream into lines; a line longer than the carry is skipped to its end."""
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        if end:
            lines = bytes(self._carry) + piece[:end] if self._carry else piece[:end]
            self._carry = b""
            if self._skipping:
                self._skipping = False
                lines = _LINE_END.split(lines, maxsplit=1)[1]
            if lines.find(_NAME) >= 0:
                for line in _LINE_END.split(lines):
                    self._read_line(line)
        if self._skipping:
            return
        if len(self._carry) + len(piece) - end > self._max_carry:
            self._give_up()
        else:
            self._keep(piece[end:])

    def _give_up(self) -> None:
        self._carry = b""
        self._skipping = True
        if self.unknown is Unknown.ABSENT:
            self.unknown = Unknown.TOO_LARGE

    def _read_line(self, line: bytes) -> None:
        if line.startswith(_DATA):
            self._read_json(line[len(_DATA) :])

    def _read_json(self, text: bytes) -> None:
        if text.find(_NAME) < 0:
            return
        try:
            told = TOLD.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return
        if type(told.usage) is dict:
            self._merge(told.usage)
        for holder in (told.response, told.message):
            found = None if holder is None else _item(holder, "usage")
            if isinstance(found, dict):
                self._merge(found)

    def _merge(self, usage: dict[str, object]) -> None:
        """Later counts replace earlier ones; counts that are missing keep what was known."""
        prompt, cached = of_prompt(usage)
        completion = _count(usage, "completion_tokens", "output_tokens")
        if prompt is None and cached is None and completion is None:
            return
        known = self._usage
        self._usage = Usage(
            prompt_tokens=known.prompt_tokens if prompt is None else prompt,
            cached_tokens=known.cached_tokens if cached is None else cached,
            completion_tokens=known.completion_tokens if completion is None else completion,
        )
        self.unknown = None


def of_prompt(usage: dict[str, object]) -> tuple[int | None, int | None]:
    """Tokens of the prompt, and how many of them were cached, as one object of usage tells."""
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    cached = _count(details, "cached_tokens")
    if cached is None:
        cached = _count(usage, "cache_read_input_tokens")
    return _count(usage, "prompt_tokens", "input_tokens"), cached


@lru_cache(maxsize=256)
def _readable(content_type: str, content_encoding: str) -> tuple[bool, Unknown | None]:
    """Whether a body is server-sent events, and why its usage is not known so far."""
    kind = content_type.partition(";")[0].strip().lower()
    sse = kind == "text/event-stream"
    if content_encoding.strip().lower() not in {"", "identity"}:
        return sse, Unknown.COMPRESSED
    if not sse and kind != "application/json" and not kind.endswith("+json"):
        return sse, Unknown.OPAQUE
    return sse, Unknown.ABSENT


def _item(holder: object, name: str) -> object:
    return holder.get(name) if isinstance(holder, dict) else None


def _count(holder: object, *names: str) -> int | None:
    """The first of these that is a count; booleans, negatives and the like are not."""
    if type(holder) is not dict:
        return None
    for name in names:
        value = holder.get(name)
        if type(value) is int and 0 <= value <= MAX_COUNT:
            return value
    return None
