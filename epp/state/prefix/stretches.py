"""Who should hold which prompts: a tree of stretches, each with those who hold all of it.

A prompt is mostly a few stretches: what it shares with others, and what is its own. A block key
names all blocks before it. So a stretch is found by its first key, and one later key tells how far
a prompt goes along: a decision pays for the stretches of its prompt and not for its blocks. Where a
prompt leaves a stretch halfway, that is split, and so is what each of its holders has of it.

Whoever holds a stretch holds those before it, at least as long. A holder is a bit, its slot, so
that one walk along a prompt answers for all candidates. To clear a holder it is retired, which is
one step however much it held: nobody's look-up asks for that bit any more. What it held is taken
away later, and only then somebody else gets its slot (`free`).
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from epp.framework import Incarnation

from .walk import Depths

FEW = 24
"""Up to so many holders are gone through one by one; more cost less as an array of bits."""


class Holder:
    """One life of an engine."""

    __slots__ = ("blocks", "holds", "retired", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.retired = False
        self.blocks = 0
        """How many it holds."""
        self.holds: OrderedDict[Hold, None] = OrderedDict()
        """Least recently asked for first, the end of a prompt before its beginning."""


class Hold:
    """What one holder has of a stretch: all of it, for a time."""

    __slots__ = ("before", "holder", "lapses", "stretch", "until")

    def __init__(self, holder: Holder, stretch: "Stretch", lapses: list[float]) -> None:
        self.holder = holder
        self.stretch = stretch
        self.lapses = lapses
        """When each open prediction of it lapses, ascending."""
        self.until = -inf
        """Valid until then, whatever becomes of the open ones."""
        self.before: Hold | None = None
        """What was split off its beginning last."""

    @property
    def end(self) -> float:
        """When it counts no more."""
        return max(self.until, self.lapses[-1]) if self.lapses else self.until

    def release(self, expires: float, until: float) -> bool:
        """One open prediction is over, and it counts until then. Whether nothing keeps it."""
        place = bisect_left(self.lapses, expires)
        if place < len(self.lapses) and self.lapses[place] == expires:
            del self.lapses[place]
        self.until = max(self.until, until)
        self.stretch.sure = min(self.stretch.sure, self.end)
        return not self.lapses and self.until == -inf

    def since(self, start: int) -> Iterator["Hold"]:
        """It, and what was split off it, down to this block of the prompt."""
        one: Hold | None = self
        while one is not None and one.stretch.start >= start:
            yield one
            one = one.before


class Stretch:
    """Successive blocks of a prompt."""

    __slots__ = ("before", "bits", "holds", "keys", "start", "sure")

    def __init__(self, keys: tuple[int, ...], start: int, before: "Stretch | None") -> None:
        self.keys = keys
        self.start = start
        """How many blocks of the prompt come before it."""
        self.before = before
        """The stretch that they end with."""
        self.bits = 0
        """Slots of its holders, retired ones among them."""
        self.holds: dict[int, Hold] = {}
        """By slot."""
        self.sure = inf
        """No hold ends before that."""

    def shared(self, keys: Sequence[int], at: int) -> int:
        """How many of its keys `keys` go on with at this place. The first is the same."""
        mine = self.keys
        most = min(len(mine), len(keys) - at)
        if keys[at + most - 1] == mine[most - 1]:
            return most
        low, high = 1, most - 1
        while low < high:
            middle = (low + high + 1) // 2
            if keys[at + middle - 1] == mine[middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low

    def over(self, now: float) -> int:
        """Slots whose time is over, as bits."""
        if now < self.sure:
            return 0
        over, sure = 0, inf
        for slot, hold in self.holds.items():
            end = hold.end
            if end > now:
                sure = min(sure, end)
            else:
                over |= 1 << slot
        self.sure = -inf if over else sure
        return over


Path = list[tuple[Stretch, int]]
"""Stretches that a prompt begins with, and how many of its keys each of them ends at."""


class Stretches:
    """Of one pool."""

    def __init__(self) -> None:
        self.size = 0
        """(holder, block) pairs, those of retired holders among them."""
        self.order: OrderedDict[Hold, None] = OrderedDict()
        """All holds, ordered as those of one holder."""
        self._first: dict[int, Stretch] = {}
        """By their first key."""
        self._holders: dict[Incarnation, Holder] = {}
        self._opened = 0
        """Slots that there are, in use or not."""
        self._free: list[int] = []
        self._asked: tuple[Incarnation, ...] | None = None
        """Who was asked for the last time."""
        self._wanted = 0
        """Their bits."""
        self._places: NDArray[np.intp] = np.zeros(0, np.intp)
        """Their slots, -1 for who has none."""

    # Holders

    def holder(self, inc: Incarnation) -> Holder:
        held = self._holders.get(inc)
        if held is None:
            held = self._holders[inc] = Holder(self._slot())
            self._asked = None
        return held

    def retire(self, inc: Incarnation) -> Holder | None:
        """`inc` has nothing. Whose holds are to be dropped by and by; None: there are none."""
        self._asked = None
        holder = self._holders.pop(inc, None)
        if holder is not None:
            holder.retired = True
        return holder

    def free(self, holder: Holder) -> None:
        """All that a retired holder had was dropped."""
        self._free.append(holder.slot)

    # What they hold

    def cover(self, holder: Holder, keys: tuple[int, ...], expires: float) -> list[Hold]:
        """All of `keys` until then, for one holder: what it has of each stretch on the way."""
        found: list[Hold] = []
        before: Stretch | None = None
        at, size = 0, len(keys)
        while at < size:
            stretch = self._first.get(keys[at])
            if stretch is None:
                stretch = self._first[keys[at]] = Stretch(keys[at:], at, before)
            elif stretch.start != at:  # two keys that are the same by chance
                break
            else:
                shared = stretch.shared(keys, at)
                if shared < len(stretch.keys):
                    stretch = self._split(stretch, shared)
            hold = stretch.holds.get(holder.slot)
            if hold is None:
                hold = self._hold(holder, stretch, [expires])
            else:
                hold.lapses.append(expires)
            found.append(hold)
            before, at = stretch, at + len(stretch.keys)
        for hold in reversed(found):  # the end first: it is then older than the beginning
            self.order.move_to_end(hold)
            holder.holds.move_to_end(hold)
        return found

    def cut(self, hold: Hold, size: int) -> None:
        """Take the last `size` blocks of it away, at most all of them."""
        stretch = hold.stretch
        left = len(stretch.keys) - size
        if left > 0 and len(stretch.holds) == 1:
            stretch.keys = stretch.keys[:left]
            hold.holder.blocks -= size
            self.size -= size
            return
        if left > 0:
            self._split(stretch, left)
        self.drop(hold)

    def drop(self, hold: Hold) -> None:
        """Take all of it away, if that was not done before."""
        holder, stretch = hold.holder, hold.stretch
        if hold not in holder.holds:
            return
        del holder.holds[hold], self.order[hold], stretch.holds[holder.slot]
        stretch.bits ^= 1 << holder.slot
        holder.blocks -= len(stretch.keys)
        self.size -= len(stretch.keys)
        if not stretch.bits and self._first.get(stretch.keys[0]) is stretch:
            del self._first[stretch.keys[0]]

    def depths(self, keys: Sequence[int], incs: tuple[Incarnation, ...], now: float) -> Depths:
        """How many leading `keys` each of `incs` has, in their order. Faster when `incs` is the
        same tuple as the last time."""
        if self._asked is not incs:
            self._ask(incs)
        by_slot = np.zeros(self._opened + 1, np.int64)  # the last stands for who has no slot
        path = self._path(keys)
        alive = self._wanted
        for place, (stretch, _) in enumerate(path):
            still = stretch.bits & alive
            if place and still != alive:
                _write(by_slot, path, place - 1, alive ^ still, now)
            alive = still
        if path:
            _write(by_slot, path, len(path) - 1, alive, now)
        return by_slot[self._places]

    # Mechanics

    def _path(self, keys: Sequence[int]) -> Path:
        path: Path = []
        at, size = 0, len(keys)
        while at < size:
            stretch = self._first.get(keys[at])
            if stretch is None or stretch.start != at:
                break
            shared = stretch.shared(keys, at)
            at += shared
            path.append((stretch, at))
            if shared < len(stretch.keys):
                break
        return path

    def _hold(self, holder: Holder, stretch: Stretch, lapses: list[float]) -> Hold:
        hold = stretch.holds[holder.slot] = Hold(holder, stretch, lapses)
        stretch.bits |= 1 << holder.slot
        stretch.sure = min(stretch.sure, lapses[-1])
        self.order[hold] = holder.holds[hold] = None
        holder.blocks += len(stretch.keys)
        self.size += len(stretch.keys)
        return hold

    def _split(self, tail: Stretch, size: int) -> Stretch:
        """Give the first `size` blocks to a stretch of their own. Its holds become the youngest of
        their holders, but for those of what comes before it."""
        head = Stretch(tail.keys[:size], tail.start, tail.before)
        tail.keys, tail.start, tail.before = tail.keys[size:], tail.start + size, head
        self._first[head.keys[0]], self._first[tail.keys[0]] = head, tail
        head.bits, head.sure = tail.bits, tail.sure
        for slot, hold in tail.holds.items():
            one = head.holds[slot] = Hold(hold.holder, head, hold.lapses.copy())
            one.until, one.before, hold.before = hold.until, hold.before, one
            self.order[one] = hold.holder.holds[one] = None
        earlier = head.before
        while earlier is not None:
            for hold in filter(None, map(earlier.holds.get, head.holds)):
                self.order.move_to_end(hold)
                hold.holder.holds.move_to_end(hold)
            earlier = earlier.before
        return head

    def _slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._opened += 1
        return self._opened - 1

    def _ask(self, incs: tuple[Incarnation, ...]) -> None:
        # A tuple doesn't change, and we hold it, so that its id isn't reused.
        holders = [self._holders.get(inc) for inc in incs]
        slots = [-1 if one is None else one.slot for one in holders]
        self._asked, self._places = incs, np.array(slots, np.intp)
        self._wanted = sum({1 << slot for slot in slots if slot >= 0})


def _write(by_slot: Depths, path: Path, place: int, bits: int, now: float) -> None:
    """These slots have no more than the stretches up to that place, or less where time is over."""
    while bits:
        stretch, end = path[place]
        over = stretch.over(now) & bits
        _spread(by_slot, bits ^ over, end)
        if not place:
            return
        bits, place = over, place - 1


def _spread(by_slot: Depths, bits: int, depth: int) -> None:
    if bits.bit_count() > FEW:
        packed = np.frombuffer(bits.to_bytes(-(-bits.bit_length() // 8), "little"), np.uint8)
        mask = np.unpackbits(packed, bitorder="little").view(np.bool_)
        by_slot[: len(mask)][mask[: len(by_slot)]] = depth
        return
    while bits:
        low = bits & -bits
        by_slot[low.bit_length() - 1] = depth
        bits ^= low
