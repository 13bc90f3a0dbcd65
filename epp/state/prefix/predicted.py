"""Which endpoints should hold which own blocks, by what we sent them.

Each request that goes to an endpoint predicts its prompt's blocks there (fault B23). The
prediction ends in one of four ways: the request fails (`drop`), the engine's own events take over
(`confirm`, after a grace), nobody ever says anything (`ttl_s`), or there is no room (the least
recently used blocks go, a prompt's tail before its head).

Keys always start at a prompt's first block. Blocks that were predicted by the same requests stand
together (`stretches`), so that a decision pays for the few stretches of its prompt and not for each
block; what has expired is cleared away whenever there is time.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from math import inf

from epp.framework import Incarnation

from .stretches import Hold, Holder, Stretches
from .walk import Depths

REFERENCES_PER_BLOCK = 4
"""Blocks in open predictions, per `max_blocks`. Beyond it the oldest can't be dropped any more."""
CLEAN_PER_STRETCH = 2
CLEAN_AT_LEAST = 8
"""Steps of clearing away that go with each new prediction: more than what it adds."""
MARKS = 16
"""Keys that stand for a prompt where there is no room for all."""


class Prediction:
    """What one request predicts on one endpoint, until it is dropped, confirmed or lapses."""

    __slots__ = ("expires", "inc", "marks", "parts", "size")

    def __init__(
        self, inc: Incarnation, holds: list[Hold], keys: tuple[int, ...], expires: float
    ) -> None:
        self.inc = inc
        self.parts = [(hold, hold.stretch.start) for hold in holds]
        """With where each began then; what was split off it since is before it."""
        self.size = len(keys)
        """Blocks."""
        self.marks = keys[:: -max(1, -(-len(keys) // MARKS))]
        """Its last key and some before it, as far from each other as makes `MARKS` of them."""
        self.expires = expires


class PredictedIndex:
    """Predictions of one pool. `now` never falls from call to call."""

    def __init__(self, max_blocks: int, ttl_s: float) -> None:
        """At most `max_blocks` (endpoint, block) pairs; a prediction lives `ttl_s` at most."""
        if max_blocks <= 0 or ttl_s <= 0:
            raise ValueError("max_blocks and ttl_s must be positive")
        self._limit = max_blocks
        self._ttl_s = ttl_s
        self._held = Stretches()
        self._open: OrderedDict[str, list[Prediction]] = OrderedDict()
        """By request, oldest first; one per endpoint."""
        self._references = 0
        """Blocks of those."""
        self._gone: deque[Holder] = deque()
        """Forgotten endpoints whose blocks are not yet away."""
        self.evicted = 0
        """Blocks that had to go for want of room while they still counted."""

    def __len__(self) -> int:
        """(endpoint, block) pairs in memory, expired ones among them."""
        return self._held.size

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
        if request_id in self._open:
            self._close(request_id, inc)
        room = self._limit if room is None else min(room, self._limit)
        held = tuple(keys[:room])
        expires = now + self._ttl_s
        if not held:
            self._clean(CLEAN_AT_LEAST, now)
            return
        holder = self._held.holder(inc)
        holds = self._held.cover(holder, held, expires)
        self._clean(CLEAN_AT_LEAST + CLEAN_PER_STRETCH * len(holds), now)
        self._open.setdefault(request_id, []).append(Prediction(inc, holds, held, expires))
        self._references += len(held)
        self._make_room(now)
        while holder.blocks > room:
            self._evict(next(iter(holder.holds)), holder.blocks - room, now)

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
        return self._held.depths(keys, incs, now)

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
        holder = self._held.retire(inc)
        if holder is not None:
            self._gone.append(holder)

    def _pop(self, request_id: str) -> list[Prediction]:
        predictions = self._open.pop(request_id, [])
        self._references -= sum(prediction.size for prediction in predictions)
        return predictions

    def _close(self, request_id: str, inc: Incarnation) -> None:
        """Take back what `request_id` predicts on `inc`."""
        predictions = self._open[request_id]
        for prediction in [one for one in predictions if one.inc == inc]:
            predictions.remove(prediction)
            self._references -= prediction.size
            self._release(prediction)
        if not predictions:
            del self._open[request_id]

    def _release(self, prediction: Prediction, until: float = -inf) -> None:
        for last, start in prediction.parts:
            for hold in last.since(start):
                if hold.release(prediction.expires, until):
                    self._held.drop(hold)

    def _evict(self, hold: Hold, size: int, now: float) -> None:
        """Take away up to so many blocks, from the end."""
        size = min(len(hold.stretch.keys), size)
        self.evicted += size if hold.end > now and not hold.holder.retired else 0
        self._held.cut(hold, size)

    def _make_room(self, now: float) -> None:
        while self._held.size > self._limit:
            self._evict(next(iter(self._held.order)), self._held.size - self._limit, now)
        while self._references > REFERENCES_PER_BLOCK * self._limit:
            request_id, predictions = next(iter(self._open.items()))
            expires = max(prediction.expires for prediction in predictions)
            self._pop(request_id)
            for prediction in predictions:
                self._release(prediction, until=expires)

    def _clean(self, budget: int, now: float) -> None:
        """Take away what no longer counts, oldest first, in about `budget` steps."""
        while self._gone and budget > 0:
            holder = self._gone[0]
            while holder.holds and budget > 0:
                self._held.drop(next(iter(holder.holds)))
                budget -= 1
            if not holder.holds:
                self._gone.popleft()
                self._held.free(holder)
        while self._open and budget > 0:
            request_id, predictions = next(iter(self._open.items()))
            if any(prediction.expires > now for prediction in predictions):
                break
            budget -= sum(len(prediction.parts) for prediction in predictions)
            self.drop(request_id)
        order = self._held.order
        while order and budget > 0:
            hold = next(iter(order))
            if hold.end > now:
                break
            self._held.drop(hold)
            budget -= 1
