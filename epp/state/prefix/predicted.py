"""Which endpoints should hold which own blocks, by what we sent them.

Each request that goes to an endpoint predicts its prompt's blocks there (fault B23). The
prediction ends in one of four ways: the request fails (`drop`), the engine's own events take over
(`confirm`, after a grace), nobody ever says anything (`ttl_s`), or there is no room (the least
recently used blocks go, a prompt's tail before its head).

Keys always start at a prompt's first block. So where a block is predicted its predecessors are,
and at least as long: a lookup finds the end of what still counts by halving, and expired blocks
can be cleared away whenever there is time.

Blocks that were predicted by the same requests stand together as one run (`runs`), so that a
decision pays for the few runs of its prompt and not for each block.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from math import inf

from epp.framework import Incarnation

from .bits import Bits
from .runs import Prediction, Run
from .walk import Depths

REFERENCES_PER_BLOCK = 4
"""Blocks in open predictions, per `max_blocks`. Beyond it the oldest can't be dropped any more."""
CLEAN_PER_KEY = 2
CLEAN_AT_LEAST = 16


class PredictedIndex:
    """Predictions of one pool. `now` never falls from call to call."""

    def __init__(self, max_blocks: int, ttl_s: float) -> None:
        """At most `max_blocks` (endpoint, block) pairs; a prediction lives `ttl_s` at most."""
        if max_blocks <= 0 or ttl_s <= 0:
            raise ValueError("max_blocks and ttl_s must be positive")
        self._limit = max_blocks
        self._ttl_s = ttl_s
        self._index = Bits()
        self._blocks: dict[Incarnation, dict[int, Run]] = {}
        """The run of each block, of every engine that was ever predicted to hold any, until it is
        forgotten."""
        self._asked: tuple[Incarnation, ...] = ()
        self._rooms: list[dict[int, Run] | None] = []
        """Blocks of each of those, as far as they were needed: hashing a life takes long."""
        self._lru: OrderedDict[Run, None] = OrderedDict()
        self._lru_of: dict[Incarnation, OrderedDict[Run, None]] = {}
        """The same by engine."""
        self._size = 0
        """Blocks of those."""
        self._open: OrderedDict[str, list[Prediction]] = OrderedDict()
        """By request, oldest first; one per endpoint."""
        self._references = 0
        self._gone: deque[tuple[int, dict[int, Run]]] = deque()
        """Slots and blocks of forgotten endpoints, not yet out of the index and the LRU."""
        self.evicted = 0
        """Blocks that had to go for want of room while they still counted."""

    def __len__(self) -> int:
        """(endpoint, block) pairs in memory, expired ones among them."""
        return self._size

    @property
    def open_requests(self) -> int:
        return len(self._open)

    def insert(
        self,
        inc: Incarnation,
        keys: Sequence[int],
        request_id: str,
        now: float,
        room: int | None = None,
    ) -> None:
        """`request_id` goes to `inc`, whose cache will hold `keys`; it has `room` for so many
        blocks in all, if that is known.

        A second call for the same two replaces the first. Of keys beyond the room, there or here,
        the head counts.
        """
        self._close(request_id, inc)
        room = self._limit if room is None else min(room, self._limit)
        held = tuple(keys[:room])
        expires = now + self._ttl_s
        self._clean(max(CLEAN_AT_LEAST, CLEAN_PER_KEY * len(held)), now)
        if not held:
            return
        parts = self._known(inc, held, expires)
        known = sum(len(run.keys) for run in parts)
        if known < len(held):
            parts.append(self._begin(inc, held[known:], known, expires))
        order = self._lru_of[inc]
        for run in reversed(parts):  # the tail first: it is then older than the head
            self._lru.move_to_end(run)
            order.move_to_end(run)
        prediction = Prediction(inc, parts, held, expires)
        self._open.setdefault(request_id, []).append(prediction)
        self._references += len(held)
        self._make_room(now)
        there = self._blocks[inc]
        while len(there) > room:
            self._evict(next(iter(order)), len(there) - room, now)

    def drop(self, request_id: str) -> None:
        """The request failed: what only it predicted counts no more (fault C25)."""
        for prediction in self._pop(request_id):
            self._release(prediction)

    def confirm(self, request_id: str, now: float, grace_s: float) -> None:
        """The prompt was computed: its blocks count for another `grace_s`, then no more."""
        for prediction in self._pop(request_id):
            self._release(prediction, until=now + grace_s)

    def lookup(
        self, keys: Sequence[int], incs: Collection[Incarnation], now: float
    ) -> dict[Incarnation, int]:
        """How many leading `keys` are predicted on each of `incs`; absent means none."""
        asked = tuple(incs)
        found = zip(asked, self.depths(keys, asked, now).tolist(), strict=True)
        return {inc: depth for inc, depth in found if depth}

    def depths(self, keys: Sequence[int], incs: tuple[Incarnation, ...], now: float) -> Depths:
        """The same as one number for each of `incs`, in their order. Faster for the same tuple."""
        found = self._index.depths(keys, incs)
        if incs is not self._asked:
            self._asked, self._rooms = incs, [None] * len(incs)
        rooms = self._rooms
        rows = found.nonzero()[0]
        for row, depth in zip(rows.tolist(), found[rows].tolist(), strict=True):
            there = rooms[row]
            if there is None:
                there = rooms[row] = self._blocks[incs[row]]
            if not there[keys[depth - 1]].live(now):
                found[row] = _still(there, keys, depth, now)
        return found

    def latest(self, most: int) -> dict[Incarnation, tuple[int, ...]]:
        """The marks of what was predicted last and waits to be confirmed, `most` of them in all; of
        one prompt all or none."""
        found: dict[Incarnation, dict[int, None]] = {}
        for predictions in reversed(self._open.values()):
            for prediction in predictions:
                most -= len(prediction.marks)
                if most < 0:
                    return {inc: tuple(marks) for inc, marks in found.items()}
                marks = found.setdefault(prediction.inc, {})
                marks.update(dict.fromkeys(prediction.marks))
        return {inc: tuple(marks) for inc, marks in found.items()}

    def forget(self, inc: Incarnation) -> None:
        """That engine is gone or restarted."""
        slot, blocks = self._index.retire(inc), self._blocks.pop(inc, None)
        self._asked, self._rooms = (), []
        self._lru_of.pop(inc, None)
        if slot is not None and blocks is not None:
            self._gone.append((slot, blocks))

    def _known(self, inc: Incarnation, keys: tuple[int, ...], expires: float) -> list[Run]:
        """The runs that `keys` begin with, predicted by one more. Whoever goes on otherwise than
        `keys` is split off."""
        there = self._blocks.setdefault(inc, {})
        parts: list[Run] = []
        at = 0
        while at < len(keys):
            run = there.get(keys[at])
            if run is None or run.keys[0] != keys[at]:  # the second only by a collision
                break
            shared = run.shared(keys[at:] if at else keys)
            if shared < len(run.keys):
                run = run.split(shared)
                self._lru[run] = self._lru_of[inc][run] = None
                there.update(dict.fromkeys(run.keys, run))
            run.lapses.append(expires)
            parts.append(run)
            at += shared
        return parts

    def _begin(self, inc: Incarnation, keys: tuple[int, ...], start: int, expires: float) -> Run:
        """A run of blocks that nobody has predicted there."""
        run = Run(inc, keys, start, [expires])
        self._blocks[inc].update(dict.fromkeys(keys, run))
        self._index.store(inc, keys)
        self._lru[run] = self._lru_of.setdefault(inc, OrderedDict())[run] = None
        self._size += len(keys)
        return run

    def _pop(self, request_id: str) -> list[Prediction]:
        predictions = self._open.pop(request_id, [])
        self._references -= sum(prediction.size for prediction in predictions)
        return predictions

    def _close(self, request_id: str, inc: Incarnation) -> None:
        """Take back what `request_id` predicts on `inc`."""
        predictions = self._open.get(request_id, [])
        for prediction in [one for one in predictions if one.inc == inc]:
            predictions.remove(prediction)
            self._references -= prediction.size
            self._release(prediction)
        if not predictions:
            self._open.pop(request_id, None)

    def _release(self, prediction: Prediction, until: float = -inf) -> None:
        for run in prediction.runs():
            run.release(prediction.expires, until)
            if not run.lapses and run.until == -inf:
                self._cut(run, len(run.keys))

    def _cut(self, run: Run, size: int) -> int:
        """Take the last `size` blocks of a run away; returns how many of them were still there."""
        left = len(run.keys) - size
        gone, run.keys = run.keys[left:], run.keys[:left]
        self._size -= size
        if not left:
            self._lru.pop(run, None)
        there = self._blocks.get(run.inc)
        if there is None:
            return 0
        if not left:
            self._lru_of[run.inc].pop(run, None)
        # Blocks that were forgotten may have successors of the same name.
        mine = [key for key in gone if there.get(key) is run]
        for key in mine:
            del there[key]
        self._index.remove(run.inc, mine)
        return len(mine)

    def _evict(self, run: Run, size: int, now: float) -> None:
        """Take away up to so many blocks of a run, from its end."""
        cut = self._cut(run, min(len(run.keys), size))
        self.evicted += cut if run.live(now) else 0

    def _make_room(self, now: float) -> None:
        while self._size > self._limit:
            self._evict(next(iter(self._lru)), self._size - self._limit, now)
        while self._references > REFERENCES_PER_BLOCK * self._limit:
            request_id, predictions = next(iter(self._open.items()))
            expires = max(prediction.expires for prediction in predictions)
            self._pop(request_id)
            for prediction in predictions:
                self._release(prediction, until=expires)

    def _clean(self, budget: int, now: float) -> None:
        """Take away what no longer counts, oldest first, in about `budget` steps."""
        while self._gone and budget > 0:
            slot, blocks = self._gone[0]
            while blocks and budget > 0:
                key, run = blocks.popitem()
                self._index.sweep(slot, key)
                if run.keys:
                    self._lru.pop(run)
                    self._size -= len(run.keys)
                    run.keys = ()
                budget -= 1
            if not blocks:
                self._gone.popleft()
                self._index.free(slot)
        while self._open and budget > 0:
            request_id, predictions = next(iter(self._open.items()))
            if any(prediction.expires > now for prediction in predictions):
                break
            budget -= sum(prediction.size for prediction in predictions)
            self.drop(request_id)
        while self._lru and budget > 0:
            run = next(iter(self._lru))
            if run.live(now):
                break
            size = min(len(run.keys), budget)
            self._cut(run, size)
            budget -= size


def _still(there: dict[int, Run], keys: Sequence[int], depth: int, now: float) -> int:
    """How many of the first `depth` keys, all of which are there, still count."""
    if there[keys[depth - 1]].live(now):
        return depth
    low, high = 0, depth - 1
    while low < high:
        middle = (low + high + 1) // 2
        if there[keys[middle - 1]].live(now):
            low = middle
        else:
            high = middle - 1
    return low
