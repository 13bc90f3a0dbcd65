"""Which endpoints should hold which own blocks, by what we sent them.

Each request that goes to an endpoint predicts its prompt's blocks there (fault B23). The
prediction ends in one of four ways: the request fails (`drop`), the engine's own events take over
(`confirm`, after a grace), nobody ever says anything (`ttl_s`), or there is no room (the least
recently used blocks go, a prompt's tail before its head).

Keys always start at a prompt's first block. So where a block is predicted its predecessors are,
and at least as long: a lookup finds the end of what still counts by halving, and expired blocks
can be cleared away whenever there is time.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from math import inf

from epp.framework import Incarnation

from .index import Depths, PrefixIndex

REFERENCES_PER_BLOCK = 4
"""Blocks in open predictions, per `max_blocks`. Beyond it the oldest can't be dropped any more."""
CLEAN_PER_KEY = 2
CLEAN_AT_LEAST = 16


class _Block:
    """One block predicted on one endpoint."""

    __slots__ = ("inc", "key", "lapses", "until")

    def __init__(self, inc: Incarnation, key: int, lapses: float) -> None:
        self.inc = inc
        self.key = key
        self.lapses = [lapses]
        """When each open prediction of it lapses, ascending."""
        self.until = -inf
        """Valid until then, whatever becomes of the open ones."""

    def live(self, now: float) -> bool:
        return self.until > now or (bool(self.lapses) and self.lapses[-1] > now)

    def release(self, expires: float, until: float) -> None:
        place = bisect_left(self.lapses, expires)
        if place < len(self.lapses) and self.lapses[place] == expires:
            del self.lapses[place]
        self.until = max(self.until, until)


class _Prediction:
    """What one request predicts on one endpoint, until it is dropped, confirmed or lapses."""

    __slots__ = ("blocks", "expires", "inc")

    def __init__(self, inc: Incarnation, blocks: tuple[_Block, ...], expires: float) -> None:
        self.inc = inc
        self.blocks = blocks
        self.expires = expires


class PredictedIndex:
    """Predictions of one pool. `now` never falls from call to call."""

    def __init__(self, max_blocks: int, ttl_s: float) -> None:
        """At most `max_blocks` (endpoint, block) pairs; a prediction lives `ttl_s` at most."""
        if max_blocks <= 0 or ttl_s <= 0:
            raise ValueError("max_blocks and ttl_s must be positive")
        self._limit = max_blocks
        self._ttl_s = ttl_s
        self._index = PrefixIndex(2 * max_blocks)  # room for an insertion before the eviction
        self._blocks: dict[Incarnation, dict[int, _Block]] = {}
        """Of every engine that was ever predicted to hold any, until it is forgotten."""
        self._asked: tuple[Incarnation, ...] = ()
        self._rooms: list[dict[int, _Block] | None] = []
        """Blocks of each of those, as far as they were needed: hashing a life takes long."""
        self._lru: OrderedDict[_Block, None] = OrderedDict()
        self._open: OrderedDict[str, list[_Prediction]] = OrderedDict()
        """By request, oldest first; one per endpoint."""
        self._references = 0
        self._gone: deque[dict[int, _Block]] = deque()
        """Blocks of forgotten endpoints, not yet out of the LRU."""
        self.evicted = 0
        """Blocks that had to go for want of room while they still counted."""

    def __len__(self) -> int:
        """(endpoint, block) pairs in memory, expired ones among them."""
        return len(self._lru)

    @property
    def open_requests(self) -> int:
        return len(self._open)

    def insert(self, inc: Incarnation, keys: Sequence[int], request_id: str, now: float) -> None:
        """`request_id` goes to `inc`, whose cache will hold `keys`.

        A second call for the same two replaces the first. Of keys beyond `max_blocks` the head
        counts.
        """
        self._close(request_id, inc)
        keys = keys[: self._limit]
        expires = now + self._ttl_s
        self._clean(max(CLEAN_AT_LEAST, CLEAN_PER_KEY * len(keys)), now)
        if not keys:
            return
        there = self._blocks.setdefault(inc, {})
        blocks: list[_Block] = []
        fresh: list[int] = []
        lru = self._lru
        for key in reversed(keys):  # the tail first: it is then older than the head
            block = there.get(key)
            if block is None:
                block = there[key] = _Block(inc, key, expires)
                fresh.append(key)
                lru[block] = None
            else:
                block.lapses.append(expires)
                lru.move_to_end(block)
            blocks.append(block)
        self._index.store(inc, fresh)
        self._open.setdefault(request_id, []).append(_Prediction(inc, tuple(blocks), expires))
        self._references += len(blocks)
        self._make_room(now)

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
        found = self._index.lookup(keys, incs)
        for inc, depth in list(found.items()):
            low = _still(self._blocks[inc], keys, depth, now)
            if low:
                found[inc] = low
            else:
                del found[inc]
        return found

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

    def forget(self, inc: Incarnation) -> None:
        """That engine is gone or restarted."""
        self._index.clear(inc)
        blocks = self._blocks.pop(inc, None)
        self._asked, self._rooms = (), []
        if blocks:
            self._gone.append(blocks)

    def _pop(self, request_id: str) -> list[_Prediction]:
        predictions = self._open.pop(request_id, [])
        self._references -= sum(len(prediction.blocks) for prediction in predictions)
        return predictions

    def _close(self, request_id: str, inc: Incarnation) -> None:
        """Take back what `request_id` predicts on `inc`."""
        predictions = self._open.get(request_id, [])
        for prediction in [one for one in predictions if one.inc == inc]:
            predictions.remove(prediction)
            self._references -= len(prediction.blocks)
            self._release(prediction)
        if not predictions:
            self._open.pop(request_id, None)

    def _release(self, prediction: _Prediction, until: float = -inf) -> None:
        for block in prediction.blocks:
            block.release(prediction.expires, until)
            if not block.lapses and block.until == -inf:
                self._remove(block)

    def _remove(self, block: _Block) -> bool:
        """Take a block away; False when it was gone already."""
        self._lru.pop(block, None)
        there = self._blocks.get(block.inc)
        # A block that was evicted or forgotten may have a successor of the same name.
        if there is None or there.get(block.key) is not block:
            return False
        del there[block.key]
        self._index.remove(block.inc, (block.key,))
        return True

    def _make_room(self, now: float) -> None:
        while len(self._lru) > self._limit:
            block = next(iter(self._lru))
            self.evicted += self._remove(block) and block.live(now)
        while self._references > REFERENCES_PER_BLOCK * self._limit:
            request_id, predictions = next(iter(self._open.items()))
            expires = max(prediction.expires for prediction in predictions)
            self._pop(request_id)
            for prediction in predictions:
                self._release(prediction, until=expires)

    def _clean(self, budget: int, now: float) -> None:
        """Take away what no longer counts, oldest first, in about `budget` steps."""
        self._index.sweep(budget)
        while self._gone and budget > 0:
            blocks = self._gone[0]
            while blocks and budget > 0:
                _, block = blocks.popitem()
                self._lru.pop(block, None)
                budget -= 1
            if not blocks:
                self._gone.popleft()
        while self._open and budget > 0:
            request_id, predictions = next(iter(self._open.items()))
            if any(prediction.expires > now for prediction in predictions):
                break
            budget -= sum(len(prediction.blocks) for prediction in predictions)
            self.drop(request_id)
        while self._lru and budget > 0:
            block = next(iter(self._lru))
            if block.live(now):
                break
            self._remove(block)
            budget -= 1


def _still(there: dict[int, _Block], keys: Sequence[int], depth: int, now: float) -> int:
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
