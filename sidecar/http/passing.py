"""The body of an engine's answer as its client gets it: without what is not the client's. Pure.

Bytes pass as they come and nothing is added. Taken out are the parameters of a handoff, and the
usage of a stream that only we asked for; another number is put where another engine knows better
how much was cached (`recounting`). JSON whose length was announced is held until it is whole
(up to `MAX_HELD`), because its length without the parameters must be announced as well.
"""

from sidecar.transfer.answers import EventFilter, Filter, answer_filter
from sidecar.transfer.redaction import may_name_in_answer

from .exchange import is_stream
from .headers import Content
from .recounting import Count, Recounted
from .unasked import WithoutUsage

MAX_HELD = 1 << 20
"""Longest JSON answer whose length is announced anew; a longer one goes out without its length."""
BODILESS = {204, 304}
_USAGE = b'"usage"'
_EVENT_ENDS = (b"\n\n\r\n", b"\r\n\r\n\r\n", b"\r\r\r\n")


def say_nothing(chunk: bytes) -> bool:
    """Whether a chunk, as it is framed, ends with an event and holds no word that is looked for."""
    return chunk.endswith(_EVENT_ENDS) and chunk.find(_USAGE) < 0 and not may_name_in_answer(chunk)


def _is_plain(coding: str) -> bool:
    return coding.strip().lower() in {"", "identity"}


class Passing:
    """One answer. `feed` every piece, then `finish`."""

    __slots__ = ("_content", "_make", "_passed", "_seen", "_usage", "held", "length")

    def __init__(
        self,
        status: int,
        content: Content,
        *,
        bodiless: bool,
        hides_usage: bool,
        trusted: bool,
        recount: Count | None = None,
    ) -> None:
        """`content`: as the answer's head tells it. `bodiless`: the request was HEAD. A `trusted`
        caller gets the parameters, too.
        """
        kind, coding = content.kind, content.coding
        self._make = None if trusted else answer_filter(kind, coding)
        self._content: Filter | None = None  # made when there is something to look at
        self._usage: WithoutUsage | Recounted | None = None
        if hides_usage and is_stream(kind) and _is_plain(coding):
            self._usage = WithoutUsage()
        elif recount is not None and self._make is not None:
            self._usage = Recounted(recount, stream=is_stream(kind))
        self._seen = self._passed = 0
        self.length = content.length
        """As it is announced to the client; None when it cannot be known before the end."""
        self.held: bytearray | None = None
        """Where the body is kept until its length is known; None when it passes at once."""
        if (self._make or self._usage) and self.length is not None and not bodiless:
            if status in BODILESS:
                return
            if self.length <= MAX_HELD:
                self.held = bytearray()
            else:
                self.length = None

    @property
    def stripped(self) -> bool:
        """Whether the answer held the parameters. Known at the end."""
        return self._passed < self._seen

    def feed(self, piece: bytes) -> bytes:
        """The bytes to send after this piece; may be empty."""
        if self.held is not None:
            self.held += piece
            return b""
        return self._filtered(piece)

    def finish(self) -> bytes:
        """The body is complete: what is still to be sent. Sets `length` where it was held."""
        if self.held is None:
            return self._rest()
        whole = bytes(self.held)
        if self._usage is not None or may_name_in_answer(whole):
            whole = self._filtered(whole) + self._rest()
        self.length = len(whole)
        return whole

    def whole(self, body: bytes) -> bytes:
        """All that is sent of a body that is here completely, in the place of `feed` and
        `finish`."""
        if self._make is not None and may_name_in_answer(body):
            return self._filtered(body) + self._rest()
        return body if self._usage is None else self._usage.feed(body) + self._usage.finish()

    @property
    def rests(self) -> bool:
        """Whether events may pass by which `say_nothing`, for nothing is held back."""
        content = self._content
        if content is None:
            rests = self._make is None
        else:
            rests = isinstance(content, EventFilter) and content.rests
        return rests and (self._usage is None or self._usage.rests) and self.held is None

    def _filtered(self, piece: bytes) -> bytes:
        if self._make is not None:
            if self._content is None:
                self._content = self._make()
            self._seen += len(piece)
            piece = self._content.feed(piece)
            self._passed += len(piece)
        return piece if self._usage is None else self._usage.feed(piece)

    def _rest(self) -> bytes:
        rest = b""
        if self._content is not None:
            rest = self._content.finish()
            self._passed += len(rest)
        return rest if self._usage is None else self._usage.feed(rest) + self._usage.finish()
