"""One endpoint's stream of records: is this one next, and is what we know of its blocks whole?

The writer's sequence is the truth (DESIGN 6). After a jump the blocks learnt so far may be gone
from the engine without our knowing, so they are dropped. What comes after it may be believed, but
is only a part, until a snapshot, and what followed on it, has been read.
"""

from collections import deque
from enum import StrEnum

from .records import Part, Record


class Verdict(StrEnum):
    """What a record's place in the sequence means."""

    NEXT = "next"
    RESET = "reset"
    """The engine's cache was emptied, or a snapshot begins: what was known is replaced."""
    LATE = "late"
    """The first record that we see of a writer that began earlier: a part only."""
    GAP = "gap"
    """Something was lost: what was known of the blocks is to be dropped."""
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    """From a writer that another one has replaced."""


class Feed:
    """Where the reading of one life's records stands."""

    __slots__ = ("_nonce", "_part", "_retired", "_seq", "complete", "events", "last_at", "partial")

    def __init__(self) -> None:
        self._nonce: int | None = None
        self._seq = 0
        self._part: Part | None = None
        """The part of a snapshot that was taken last, while more are to come."""
        self._retired: deque[int] = deque(maxlen=8)
        self.complete = False
        """A full state and everything after it was read."""
        self.events = False
        """The writer sees the engine's KV events."""
        self.partial = False
        """It has missed some of them for good."""
        self.last_at: float | None = None
        """When the latest record that was accepted was said; snapshots do not count."""

    def on(self, record: Record, said_at: float) -> Verdict:
        """Judge one record, and take note of it unless it is a duplicate or fenced."""
        if record.part is not None:
            return self._on_part(record, record.part)
        verdict = self._judge(record)
        if verdict is Verdict.DUPLICATE or verdict is Verdict.FENCED:
            return verdict
        self._seq, self._part = record.seq, None
        self.last_at = said_at if self.last_at is None else max(said_at, self.last_at)
        if verdict is Verdict.RESET:
            self.complete = True
        elif verdict is not Verdict.NEXT:
            self.complete = False
        return verdict

    def _on_part(self, record: Record, part: Part) -> Verdict:
        """A snapshot is taken from its first part to its last, or not at all.

        It may take us back: whoever reads one goes on with the records that followed on it.
        """
        if part.index == 0:
            if record.nonce in self._retired:
                return Verdict.FENCED
            if record.nonce == self._nonce and self.complete and record.seq <= self._seq:
                return Verdict.DUPLICATE
            self._succeed(record.nonce)
            self._seq = record.seq
        elif not self._continues(record, part):
            return Verdict.DUPLICATE
        self.complete = part.last
        self._part = None if part.last else part
        return Verdict.NEXT if part.index else Verdict.RESET

    def _continues(self, record: Record, part: Part) -> bool:
        follows = self._part is not None and part == Part(self._part.index + 1, self._part.of)
        return follows and (record.nonce, record.seq) == (self._nonce, self._seq)

    def _judge(self, record: Record) -> Verdict:
        if record.nonce != self._nonce:
            return self._judge_new_writer(record)
        if record.seq <= self._seq:
            return Verdict.DUPLICATE
        if record.reset:
            return Verdict.RESET
        follows = record.seq == self._seq + 1 and self._part is None
        return Verdict.NEXT if follows else Verdict.GAP

    def _judge_new_writer(self, record: Record) -> Verdict:
        if record.nonce in self._retired:
            return Verdict.FENCED
        first = self._nonce is None
        self._succeed(record.nonce)
        if record.reset:
            return Verdict.RESET
        return Verdict.LATE if first else Verdict.GAP

    def _succeed(self, nonce: int) -> None:
        """This writer speaks from here on, and whoever spoke before never again."""
        if self._nonce is not None and nonce != self._nonce:
            self._retired.append(self._nonce)
        self._nonce = nonce

    def incomplete(self) -> None:
        """What was read cannot be believed: wait for the next full state."""
        self.complete = False
