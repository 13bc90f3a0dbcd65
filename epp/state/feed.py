"""One endpoint's stream of records: is this one next, and is what we know of its blocks whole?

The writer's sequence is the truth (DESIGN 6). After a jump the blocks learnt so far may be gone
from the engine without our knowing, so they are dropped. What comes after it may be believed, but
is only a part, until the writer says everything again (`reset`). A writer also says it again from
time to time for readers that came late (`restated`); who followed it all along passes over that.
"""

from collections import deque
from enum import StrEnum

from .records import Record


class Verdict(StrEnum):
    """What a record's place in the sequence means."""

    NEXT = "next"
    RESET = "reset"
    """A full state: what was known is replaced."""
    LATE = "late"
    """The first record that we see of a writer that began earlier: a part only."""
    GAP = "gap"
    """Something was lost: what was known of the blocks is to be dropped."""
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    """From a writer that another one has replaced."""


class Feed:
    """Where the reading of one life's records stands."""

    __slots__ = ("_nonce", "_retired", "_seq", "complete", "events", "known", "last_at")

    def __init__(self) -> None:
        self._nonce: int | None = None
        self._seq = 0
        self._retired: deque[int] = deque(maxlen=8)
        self.complete = False
        """A full state and everything after it was read."""
        self.known = False
        """The full state that is being restated tells us nothing new."""
        self.events = False
        """The writer sees the engine's KV events."""
        self.last_at: float | None = None
        """When a record was last accepted."""

    def on(self, record: Record, now: float) -> Verdict:
        """Judge one record, and take note of it unless it is a duplicate or fenced."""
        verdict = self._judge(record)
        if verdict is Verdict.DUPLICATE or verdict is Verdict.FENCED:
            return verdict
        self._seq = record.seq
        self.last_at = now
        if record.reset or verdict is not Verdict.NEXT:
            self.known = verdict is Verdict.NEXT
        if verdict is Verdict.RESET:
            self.complete = True
        elif verdict is not Verdict.NEXT:
            self.complete = False
        return verdict

    def _judge(self, record: Record) -> Verdict:
        begins = record.reset and record.seq == 1
        if record.nonce != self._nonce:
            return self._judge_new_writer(record, begins)
        if begins:
            return Verdict.RESET
        if record.seq <= self._seq:
            return Verdict.DUPLICATE
        follows = record.seq == self._seq + 1
        if record.reset and not (record.restated and follows and self.complete):
            return Verdict.RESET
        return Verdict.NEXT if follows else Verdict.GAP

    def _judge_new_writer(self, record: Record, begins: bool) -> Verdict:
        if record.nonce in self._retired:
            if not begins:
                return Verdict.FENCED
            self._retired.remove(record.nonce)
        before, self._nonce = self._nonce, record.nonce
        if before is not None:
            self._retired.append(before)
        if record.reset:
            return Verdict.RESET
        return Verdict.LATE if before is None else Verdict.GAP

    def incomplete(self) -> None:
        """What was read cannot be believed: wait for the next full state."""
        self.complete = False
