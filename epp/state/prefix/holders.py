"""Which endpoints hold which keys on one tier, for millions of pairs.

Each key has a lane in a table, and there a reference to its holders. Holders are named by slots: an
incarnation has one as long as it holds anything. To clear one its slot is retired, which is one
step however much it held: nobody asks for that slot any more. A sweep goes through the lanes in the
background, and once it has been everywhere the slot is given to somebody else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from epp.framework import Incarnation, Mask
from epp.state.keys import PackedKeys

from .clearing import Clearing, Stamps
from .keytable import U32, U64, KeyTable, Lanes
from .rounds import rounds
from .sets import MAX_SLOTS, NOBODY, HolderSets, Slots
from .walk import Depths, walk

SWEEP_PER_KEY: Final = 8
"""Lanes swept for each key stored or removed, so that churn alone bounds the memory."""

FIRST_SLOTS: Final = 64
"""Whose keys can be counted at first; twice as many as there is need."""
LOSE_AT_ONCE: Final = 1024
"""Keys whose holders are counted in one array."""
_ENOUGH: Final = 1 << 62

Keys = Sequence[int] | U64
"""Of own blocks, in the order of their prompt."""


@dataclass(frozen=True, slots=True)
class Told:
    """What somebody no longer holds, and then what they hold too."""

    inc: Incarnation
    removed: Keys = ()
    stored: Keys = ()


class Holders:
    """Who holds which keys. Every change is idempotent."""

    def __init__(self, limit: int) -> None:
        """Keys beyond `limit` of one incarnation are refused; those that came first stay."""
        if limit <= 0:
            raise ValueError(f"an endpoint's limit of blocks must be positive, got {limit}")
        self._limit = limit
        self._table = KeyTable()
        self._sets = HolderSets()
        self._slots: dict[Incarnation, int] = {}
        self._counts: NDArray[np.int64] = np.zeros(FIRST_SLOTS, np.int64)
        """By slot: its keys."""
        self._opened = 0
        """Slots that there are, in use or not."""
        self._free: list[int] = []
        self._retired: list[int] = []
        """Slots that the sweep after this one takes."""
        self._swept: list[int] = []
        """Slots that this sweep takes."""
        self._marks: Mask = np.zeros(MAX_SLOTS + 1, np.bool_)
        """Those, by slot."""
        self._lane = 0
        """Where this sweep goes on."""
        self._old_lane = 0
        """Where the look for old keys does."""
        self._asked: tuple[Incarnation, ...] | None = None
        self._places: NDArray[np.intp] = np.zeros(0, np.intp)
        """Slots of those; one that nobody has for who holds nothing."""
        self._stamps = Stamps(0)
        self._clearing: Clearing | None = None
        self.refused = 0
        """Keys over the limit of their holder, or without a place, not stored."""
        self.evicted = 0
        """Keys that had to go for want of room, or that nobody spoke of for too long."""

    def __len__(self) -> int:
        """Keys, those of retired slots among them until they are swept."""
        return len(self._table)

    def __contains__(self, inc: Incarnation) -> bool:
        return inc in self._slots

    def __iter__(self) -> Iterator[Incarnation]:
        return iter(self._slots)

    @property
    def nbytes(self) -> int:
        """Memory of keys and holders."""
        return self._table.nbytes + self._sets.nbytes

    @property
    def retired(self) -> int:
        """Pairs that still wait to be swept."""
        return int(self._counts[[*self._retired, *self._swept]].sum())

    @property
    def clearing(self) -> bool:
        """Old keys are being looked for; see `evict`."""
        return self._clearing is not None

    @property
    def slots(self) -> int:
        """Slots in use: incarnations that hold keys, and retired ones."""
        return self._opened - len(self._free)

    def blocks(self, inc: Incarnation) -> int:
        slot = self._slots.get(inc)
        return 0 if slot is None else int(self._counts[slot])

    def tell(self, told: Sequence[Told], room: int = _ENOUGH) -> None:
        """Take over what was told, the first first, and of each what was removed first.

        Keys beyond `room` that nobody held are refused. Much at once costs half as much a key.
        """
        self.sweep(SWEEP_PER_KEY * sum(len(one.removed) + len(one.stored) for one in told))
        lists = list(self._lists(told))
        if not lists:
            return
        most = len(self._table) + max(0, room)
        news = sum(len(keys) for _, keys, there in lists if there)
        fullest = max(int(self._counts[slot]) for slot, _, _ in lists)
        if fullest + news <= self._limit:
            self._change(lists, most)
            return
        for one in lists:
            self._change([one], most, self._limit)

    def _lists(self, told: Sequence[Told]) -> Iterator[tuple[int, U64, bool]]:
        """Of each list its slot, its keys, and whether they are there now; no empty ones."""
        for one in told:
            slot = self._slots.get(one.inc)
            if slot is not None and len(one.removed):
                yield slot, as_keys(one.removed), False
            if not len(one.stored):
                continue
            if slot is None:
                slot = self._open(one.inc)
            if slot is None:
                self.refused += len(one.stored)
            else:
                yield slot, as_keys(one.stored), True

    def _change(
        self, lists: Sequence[tuple[int, U64, bool]], most: int, limit: int | None = None
    ) -> None:
        """`most`: keys that there may be. With `limit`, of one list: that its slot may have."""
        of_list = [len(keys) for _, keys, _ in lists]
        keys = lists[0][1] if len(lists) == 1 else np.concatenate([keys for _, keys, _ in lists])
        number = np.arange(len(lists)).repeat(of_list)
        slots = np.array([slot for slot, _, _ in lists], np.uint16)[number]
        there = np.array([there for _, _, there in lists], np.bool_)[number]
        for some in rounds(keys, number):
            left = None if limit is None else limit - int(self._counts[slots[0]])
            self._take_over(keys[some], slots[some], there[some], most, left)

    def _take_over(self, keys: U64, slots: Slots, there: Mask, most: int, left: int | None) -> None:
        """One key after the other, each another one, is there now for its slot or is not. `left`:
        so many more at most."""
        lanes = self._table.find(keys)
        known = (lanes >= 0).nonzero()[0]
        held: Mask = np.zeros(len(keys), np.bool_)
        held[known] = self._sets.has(self._table.refs[lanes[known]], slots[known])
        gone = (held & ~there).nonzero()[0]
        if len(gone):
            self._take(slots[gone], lanes[gone])
        told = lanes[known[there[known]]]
        self._table.stamps[told] = self._stamps.told_again(self._table.stamps[told])
        news = there & ~held
        if left is not None:
            over = news & (news.cumsum() > left)
            self.refused += int(np.count_nonzero(over))
            news &= ~over
        joined = known[news[known]]
        if len(joined):
            refs = self._table.refs[lanes[joined]]
            self._table.refs[lanes[joined]] = self._sets.plus(refs, slots[joined])
            self._count(slots[joined], 1)
            news[joined] = False
        made = news.nonzero()[0]
        if len(made):
            self._make(keys[made], slots[made], most)

    def _make(self, keys: U64, slots: Slots, most: int) -> None:
        """Put in keys that nobody holds."""
        room = most - len(self._table)
        placed = self._table.add(keys[:room], slots[:room].astype(np.uint32), self._stamps.told)
        if placed < len(keys):
            self.refused += len(keys) - placed
            slots = slots[self._table.find(keys) >= 0]
        self._count(slots, 1)

    def clear(self, inc: Incarnation) -> None:
        """`inc` holds nothing. The cost doesn't depend on how much it held."""
        slot = self._slots.pop(inc, None)
        if slot is not None:
            self._retired.append(slot)
            self._asked = None

    def depths(self, keys: U64, incs: tuple[Incarnation, ...]) -> Depths:
        """How many leading `keys` each of `incs` holds. Faster for the same tuple as before."""
        by_slot = np.zeros(self._sets.width + 1, np.int64)  # the last is nobody's
        lanes = self._table.leading(keys)
        walk(self._sets, self._table.refs[lanes], by_slot)
        self._table.stamps[lanes] = self._stamps.asked(len(lanes))
        return by_slot[self._placed(incs)]

    def matrix(self, keys: U64, incs: tuple[Incarnation, ...]) -> NDArray[np.bool_]:
        """Which of `incs` (across) hold which of `keys` (down)."""
        marks = np.zeros((len(keys), self._sets.width + 1), np.bool_)
        lanes = self._table.find(keys)
        found = (lanes >= 0).nonzero()[0]
        self._sets.mark(self._table.refs[lanes[found]], found, marks)
        self._table.stamps[lanes[found]] = self._stamps.asked(len(keys))[found]
        return marks[:, self._placed(incs)]

    def sweep(self, budget: int) -> int:
        """Look at up to `budget` lanes for keys of retired slots; returns how many pairs it took
        away."""
        if not self._swept:
            if not self._retired:
                return 0
            self._begin_sweep()
        stop = min(self._lane + max(0, budget), self._table.lanes)
        lanes = self._table.used(self._lane, stop)
        dirty = lanes[self._sets.has_any(self._table.refs[lanes], self._marks)]
        taken = 0
        for slot in self._swept if len(dirty) else ():
            every = np.full(len(dirty), slot, np.uint16)
            mine = dirty[self._sets.has(self._table.refs[dirty], every)]
            taken += len(mine)
            self._take(every[: len(mine)], mine)
            dirty = dirty[self._table.refs[dirty] != NOBODY]
        self._lane = stop
        if stop == self._table.lanes:
            self._end_sweep()
        return taken

    def begin_epoch(self, epoch: int) -> None:
        """What is told of and asked for from now on is younger."""
        self._stamps = Stamps(epoch)

    def evict(self, budget: int, wanted: int) -> None:
        """Go on to look for the oldest `wanted` keys and take them away, `budget` lanes on."""
        if self._clearing is None:
            self._clearing = Clearing(wanted)
        start, stop = self._clearing.span(budget, self._table.lanes)
        lanes = self._table.used(start, stop)
        ranks = self._stamps.ranks(self._table.stamps[lanes])
        self._lose(lanes[self._clearing.look(ranks, stop, self._table.lanes)])
        if self._clearing.over:
            self._clearing = None

    def drop_older(self, epochs: int, budget: int) -> None:
        """Take away keys that nobody spoke of for more than so many epochs, `budget` lanes on."""
        stop = min(self._old_lane + budget, self._table.lanes)
        lanes = self._table.used(self._old_lane, stop)
        self._lose(lanes[self._stamps.ages(self._table.stamps[lanes]) > epochs])
        self._old_lane = 0 if stop == self._table.lanes else stop

    # Mechanics

    def _lose(self, lanes: Lanes) -> None:
        """Take these keys from all of their holders."""
        self.evicted += len(lanes)
        for at in range(0, len(lanes), LOSE_AT_ONCE):
            some = lanes[at : at + LOSE_AT_ONCE]
            refs = self._table.refs[some]
            marks = np.zeros((len(some), self._sets.width), np.bool_)
            self._sets.mark(refs, np.arange(len(some)), marks)
            counts = marks.sum(axis=0)
            slots = counts.nonzero()[0]
            self._counts[slots] -= counts[slots]
            self._sets.drop(refs)
            self._table.drop(some)

    def _take(self, slots: Slots, lanes: Lanes) -> None:
        """Take a slot from each of these keys, which it holds."""
        refs: U32 = self._sets.minus(self._table.refs[lanes], slots)
        self._table.refs[lanes] = refs
        self._table.drop(lanes[refs == NOBODY])
        self._count(slots, -1)

    def _count(self, slots: Slots, by: int) -> None:
        self._counts += by * np.bincount(slots, minlength=len(self._counts))

    def _open(self, inc: Incarnation) -> int | None:
        if self._free:
            slot = self._free.pop()
        elif self._opened < MAX_SLOTS:
            slot = self._opened
            self._opened += 1
            self._sets.admit(slot)
            if slot == len(self._counts):
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        else:
            return None
        self._slots[inc] = slot
        self._asked = None
        return slot

    def _placed(self, incs: tuple[Incarnation, ...]) -> NDArray[np.intp]:
        # Hashing an incarnation costs as much as the lookup of some keys. A tuple doesn't change,
        # and we hold it, so that its id isn't reused.
        if self._asked is not incs:
            self._asked = incs
            self._places = np.array([self._slots.get(inc, -1) for inc in incs], np.intp)
        return self._places

    def _begin_sweep(self) -> None:
        self._swept, self._retired = self._retired, []
        self._marks[self._swept] = True
        self._lane = 0

    def _end_sweep(self) -> None:
        self._marks[self._swept] = False
        self._free += self._swept
        self._swept = []
        self._table = self._table.thinned()


def as_keys(keys: Keys) -> U64:
    """As an array, without a copy where it is one."""
    if isinstance(keys, PackedKeys):
        return np.frombuffer(keys.packed, "<u8")
    return keys if isinstance(keys, np.ndarray) else np.fromiter(keys, np.uint64, len(keys))
