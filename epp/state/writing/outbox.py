"""What is still to be said to the log, bounded, in an order that a reader can follow. Pure.

After a claim a snapshot says everything; so it does when more has changed than may wait here.
Changes of one block on one tier replace each other. Reports of requests are said at least once:
those of a record that failed go back to the head of the queue.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from epp.state.engine_blocks import GPU, Delta
from epp.state.records import BlockChange, Done, FirstToken, TierChange

KEYS_PER_RECORD = 10_000
"""80 kB, and a few milliseconds of a reader's event loop."""
REPORTS_PER_RECORD = 1_000
MAX_CHANGES = 60_000
"""Blocks whose change waits; one more, and a snapshot is said instead."""
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
        *,
        keys_per_record: int = KEYS_PER_RECORD,
        max_changes: int = MAX_CHANGES,
        max_reports: int = MAX_REPORTS,
    ) -> None:
        self._keys_per_record = keys_per_record
        self._max_changes = max_changes
        self._max_reports = max_reports
        self.owes_snapshot = True
        """The next thing to say is a snapshot."""
        self._reset = False
        """The next record empties the cache first."""
        self._changes: dict[str, dict[int, bool]] = {}
        """Of each tier: whether a block is there now."""
        self._first: deque[FirstToken] = deque()
        self._done: deque[Done] = deque()
        self._under_way: Parcel | None = None
        self.dropped = 0
        """Reports that were lost because the queue was full; the oldest go first."""

    @property
    def empty(self) -> bool:
        """Nothing but load is left to say."""
        return not (self._first or self._done) and self.settled

    @property
    def settled(self) -> bool:
        """With what was taken, all about blocks is said."""
        return not (self.owes_snapshot or self._reset or self._waiting)

    @property
    def crowded(self) -> bool:
        """The next record is full already: say it at once, without a pause."""
        return (
            self._waiting >= self._keys_per_record
            or len(self._first) >= REPORTS_PER_RECORD
            or len(self._done) >= REPORTS_PER_RECORD
        )

    def restart(self) -> None:
        """A new sequence begins (a claim): say a snapshot first."""
        self.owes_snapshot = True

    def stated(self) -> None:
        """A snapshot of everything up to this moment is about to be said."""
        self.owes_snapshot = self._reset = False
        self._changes.clear()

    def blocks(self, delta: Delta) -> None:
        """The cache changed."""
        if self.owes_snapshot:
            return
        if delta.reset:
            self._reset = True
            self._changes.clear()
        self._change(GPU, delta.stored, delta.removed)
        for tier in delta.tiers:
            self._change(tier.tier, tier.stored, tier.removed)
        if self._waiting > self._max_changes:
            self.owes_snapshot = True
            self._changes.clear()

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
        """It is not known to be in the log: its reports are said again, and a snapshot."""
        parcel, self._under_way = self._under_way, None
        self.owes_snapshot = True
        if parcel is not None:
            self._first.extendleft(reversed(parcel.first_tokens))
            self._bound(self._first)
            self._done.extendleft(reversed(parcel.done))
            self._bound(self._done)

    @property
    def _waiting(self) -> int:
        return sum(len(changes) for changes in self._changes.values())

    def _change(self, tier: str, stored: Sequence[int], removed: Sequence[int]) -> None:
        if stored or removed:
            changes = self._changes.setdefault(tier, {})
            changes.update(dict.fromkeys(stored, True))
            changes.update(dict.fromkeys(removed, False))

    def _next_blocks(self) -> BlockChange | None:
        if self.owes_snapshot:
            return None
        reset, self._reset = self._reset, False
        if not reset and not self._waiting:
            return None
        taken = {name: (stored, removed) for name, stored, removed in self._taken()}
        stored, removed = taken.pop(GPU, ((), ()))
        return BlockChange(
            reset=reset,
            stored=stored,
            removed=removed,
            tiers=tuple(TierChange(name, *lists) for name, lists in taken.items()),
        )

    def _taken(self) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """Changes that fit into one record, tier by tier, taken from those that wait."""
        room = self._keys_per_record
        for name, changes in list(self._changes.items()):
            if len(changes) <= room:
                now = self._changes.pop(name)
            else:
                now = {key: changes.pop(key) for key in list(changes)[:room]}
            room -= len(now)
            if now:
                yield (
                    name,
                    tuple(key for key, there in now.items() if there),
                    tuple(key for key, there in now.items() if not there),
                )

    def _bound(self, queue: "deque[FirstToken] | deque[Done]") -> None:
        while len(queue) > self._max_reports:
            queue.popleft()
            self.dropped += 1


def _popped(queue: "deque[_T]", most: int) -> tuple[_T, ...]:
    return tuple(queue.popleft() for _ in range(min(most, len(queue))))
