"""What is still to be said to the log, bounded, in an order that a reader can follow. Pure.

After a claim everything is said anew: the first record carries `reset`, and what does not fit into
it follows in `stored` lists. Changes that come meanwhile wait behind. A full state may also be
restated for readers that came late; that takes nothing away from the changes that wait. Changes of
one block replace each other; too many of them become a full state. Reports of requests are said at
least once: those of a record that failed go back to the head of the queue.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from epp.state.engine_blocks import Delta
from epp.state.records import BlockChange, Done, FirstToken

KEYS_PER_RECORD = 10_000
"""80 kB, and a few milliseconds of a reader's event loop."""
REPORTS_PER_RECORD = 1_000
MAX_CHANGES = 60_000
"""Blocks whose change waits; one more, and a full state is said instead."""
MAX_REPORTS = 10_000
"""First tokens, and likewise ends of requests, that wait while the log is away."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Parcel:
    """The contents of one record, load apart."""

    blocks: BlockChange | None
    first_tokens: tuple[FirstToken, ...]
    done: tuple[Done, ...]


class Outbox:
    """Collects changes between flushes. `take`, append, then `sent` or `failed`."""

    def __init__(
        self,
        present: Callable[[], list[int]],
        *,
        keys_per_record: int = KEYS_PER_RECORD,
        max_changes: int = MAX_CHANGES,
        max_reports: int = MAX_REPORTS,
    ) -> None:
        self._present = present
        self._keys_per_record = keys_per_record
        self._max_changes = max_changes
        self._max_reports = max_reports
        self._say_all = True
        self._reset = False
        self._restate = False
        """Say the full state again, when nothing else of the kind is under way."""
        self._restating = False
        """What is in `_full` is said again."""
        self._full: deque[int] = deque()
        self._changes: dict[int, bool] = {}
        self._first: deque[FirstToken] = deque()
        self._done: deque[Done] = deque()
        self._under_way: Parcel | None = None
        self.dropped = 0
        """Reports that were lost because the queue was full; the oldest go first."""
        self.resets = 0
        """Full states that were begun."""

    @property
    def empty(self) -> bool:
        """Nothing but load is left to say."""
        whole = self._say_all or self._reset or self._restate or self._full
        return not (whole or self._changes or self._first or self._done)

    @property
    def crowded(self) -> bool:
        """The next record is full already: say it at once, without a pause."""
        return bool(
            self._full
            or len(self._changes) >= self._keys_per_record
            or len(self._first) >= REPORTS_PER_RECORD
            or len(self._done) >= REPORTS_PER_RECORD
        )

    def restart(self) -> None:
        """A new sequence begins (a claim): say the full state first."""
        self._say_all = True

    def restate(self) -> None:
        """Say the full state again for readers that came late."""
        self._restate = True

    def blocks(self, delta: Delta) -> None:
        """The cache changed."""
        if self._say_all:
            return
        if delta.reset:
            self._reset, self._restating = True, False
            self._full.clear()
            self._changes.clear()
        self._changes.update(dict.fromkeys(delta.stored, True))
        self._changes.update(dict.fromkeys(delta.removed, False))
        if len(self._changes) > self._max_changes:
            self._say_all = True

    def first_token(self, first: FirstToken) -> None:
        self._first.append(first)
        self._bound(self._first)

    def done(self, done: Done) -> None:
        self._done.append(done)
        self._bound(self._done)

    def take(self) -> Parcel:
        """The contents of the next record; may hold nothing."""
        self._under_way = Parcel(
            blocks=self._next_blocks(),
            first_tokens=_popped(self._first, REPORTS_PER_RECORD),
            done=_popped(self._done, REPORTS_PER_RECORD),
        )
        return self._under_way

    def sent(self) -> None:
        """The record that was taken is in the log."""
        self._under_way = None

    def failed(self) -> None:
        """It is not known to be in the log: its reports are said again, and the full state."""
        parcel, self._under_way = self._under_way, None
        self._say_all = True
        if parcel is not None:
            self._first.extendleft(reversed(parcel.first_tokens))
            self._bound(self._first)
            self._done.extendleft(reversed(parcel.done))
            self._bound(self._done)

    def _next_blocks(self) -> BlockChange | None:
        if self._say_all:
            self._say_all, self._reset = False, True
            self._restate = self._restating = False
            self._changes.clear()
            self._full = deque(self._present())
        elif self._restate and not self._full and not self._reset:
            # Changes stay: who knows the full state passes over it and needs them.
            self._restate, self._restating, self._reset = False, True, True
            self._full = deque(self._present())
        reset, self._reset = self._reset, False
        self.resets += reset
        if self._full or (reset and self._restating):
            return BlockChange(
                reset=reset,
                stored=_popped(self._full, self._keys_per_record),
                restated=self._restating,
            )
        keys = list(islice(self._changes, self._keys_per_record))
        if not keys and not reset:
            return None
        present = [(key, self._changes.pop(key)) for key in keys]
        return BlockChange(
            reset=reset,
            stored=tuple(key for key, stored in present if stored),
            removed=tuple(key for key, stored in present if not stored),
        )

    def _bound(self, queue: "deque[FirstToken] | deque[Done]") -> None:
        while len(queue) > self._max_reports:
            queue.popleft()
            self.dropped += 1


def _popped(queue: "deque[_T]", most: int) -> tuple[_T, ...]:
    return tuple(queue.popleft() for _ in range(min(most, len(queue))))
