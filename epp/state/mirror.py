"""What writers have told us of their engines' blocks, and how far it is to be believed."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from epp.framework import EndpointId, Incarnation, Rung

from . import blocks
from .feed import Feed, Verdict
from .prefix import GPU, PrefixIndex, TierDepths, Told
from .records import BlockChange, Record

REREAD_S = 2.0
"""Between two requests for the snapshot of an endpoint whose blocks are not all known."""


class Mirror:
    """The precise index with the state of each endpoint's feed. `counts` is the pool's."""

    def __init__(
        self,
        index: PrefixIndex,
        *,
        own_block_tokens: int,
        fresh_s: float,
        counts: Counter[str],
    ) -> None:
        self.own_block_tokens = own_block_tokens
        self._index = index
        self.fresh_s = fresh_s
        """A writer silent for longer is not believed."""
        self._counts = counts
        self._feeds: dict[EndpointId, Feed] = {}
        self._heard: set[EndpointId] = set()
        self._lost: dict[EndpointId, float] = {}
        """Endpoints of whose records we lack some: when to ask for their snapshot."""
        self._asked: dict[EndpointId, float] = {}
        """When that was last done. A snapshot may end before what is missing: reading it again at
        once, and again, would bring the same."""
        self._told: defaultdict[str, list[Told]] = defaultdict(list)
        """Of each tier: changes that the index has not been told yet."""
        self._bounds: dict[Incarnation, int] = {}
        """Own blocks that those engines can hold which they are of."""

    def fresh(self, endpoint: EndpointId, now: float) -> bool:
        """Its writer spoke lately."""
        age = self.age_s(endpoint, now)
        return age is not None and age <= self.fresh_s

    def heard(self) -> list[EndpointId]:
        """Endpoints whose `last_at` may be another than when this was called last."""
        found = list(self._heard)
        self._heard.clear()
        return found

    def last_at(self, endpoint: EndpointId) -> float | None:
        """When its writer spoke last; None when it did not in this life."""
        feed = self._feeds.get(endpoint)
        return None if feed is None else feed.last_at

    def age_s(self, endpoint: EndpointId, now: float) -> float | None:
        """Seconds since its writer's last record; None when there was none in this life."""
        at = self.last_at(endpoint)
        return None if at is None else now - at

    def rung(self, endpoint: EndpointId, now: float) -> Rung:
        """PRECISE where a live writer has told us all of the engine's blocks, else PREDICTED."""
        feed = self._feeds.get(endpoint)
        told = feed is not None and feed.complete and feed.events and not feed.partial
        if told and self.fresh(endpoint, now):
            return Rung.PRECISE
        return Rung.PREDICTED

    def sees_events(self, endpoint: EndpointId) -> bool:
        """Its writer says that it sees the engine's KV events."""
        feed = self._feeds.get(endpoint)
        return feed is not None and feed.events

    def silent(
        self, longer_than_s: float, now: float, *, listening_since: float | None
    ) -> Iterator[EndpointId]:
        """Endpoints whose writer spoke once and has been silent for so long.

        Only silence that we could have heard counts: `listening_since` says from when on without a
        break, None that we cannot hear anybody now.
        """
        if listening_since is None:
            return
        for endpoint, feed in self._feeds.items():
            at = feed.last_at
            if at is not None and now - max(at, listening_since) > longer_than_s:
                yield endpoint

    def lost(self, now: float) -> list[EndpointId]:
        """Endpoints whose snapshot should be read: each as soon as we lack records, then again
        from time to time until all is known."""
        due = [endpoint for endpoint, at in self._lost.items() if at <= now]
        for endpoint in due:
            self._asked[endpoint] = now
            self._lost[endpoint] = now + REREAD_S
        return due

    def accept(
        self, record: Record, inc: Incarnation, now: float, *, behind_s: float = 0.0
    ) -> bool:
        """Judge a record by its place in the sequence. False: it is to be ignored altogether.

        Blocks that may be gone without our knowing, or that a full state replaces, are dropped.
        """
        feed = self._feeds.setdefault(inc.endpoint, Feed())
        verdict = feed.on(record, now - behind_s)
        self._heard.add(inc.endpoint)
        if verdict is not Verdict.NEXT:
            self._counts[f"feed-{verdict}"] += 1
        if verdict is Verdict.DUPLICATE or verdict is Verdict.FENCED:
            return False
        if verdict is Verdict.GAP or verdict is Verdict.RESET:
            self._clear(inc)
        if record.status is not None:
            feed.events, feed.partial = record.status.events, record.status.partial
        if verdict is Verdict.GAP or verdict is Verdict.LATE:
            asked = self._asked.get(inc.endpoint)
            self._lost.setdefault(inc.endpoint, now if asked is None else asked + REREAD_S)
        elif feed.complete:
            self._lost.pop(inc.endpoint, None)
        return True

    def change(self, change: BlockChange, inc: Incarnation, *, most: int | None) -> bool:
        """Take accepted block changes, for `settle`. `most`: own blocks that the engine can hold,
        if known.

        True when something changed and all of the engine's blocks are known.
        """
        feed = self._feeds[inc.endpoint]
        if change.scheme != blocks.SCHEME or change.own_block_tokens != self.own_block_tokens:
            self._disbelieve(inc, "blocks-other-scheme")
            return False
        if change.removed or change.stored:
            self._told[GPU].append(Told(inc, change.removed, change.stored))
        for slower in change.tiers:
            self._told[slower.tier].append(Told(inc, slower.removed, slower.stored))
        if most is not None:
            self._bounds[inc] = most
        return bool(change.stored or change.removed) and feed.complete

    def settle(self) -> None:
        """Bring what was taken into the index: until then look-ups do not see it. For the changes
        of many records together that takes a third of what it takes for one after the other."""
        for tier, told in self._told.items():
            self._index.tell(told, tier)
        bounds, self._bounds = self._bounds, {}
        self._told.clear()
        for inc, most in bounds.items():
            if self._index.blocks(inc) > most:
                self._disbelieve(inc, "blocks-implausible")

    def depths(self, keys: Sequence[int], lives: tuple[Incarnation, ...]) -> TierDepths:
        """Leading keys that each engine holds, and where; see `PrefixIndex.tier_depths`."""
        return self._index.tier_depths(keys, lives)

    def blocks(self, inc: Incarnation) -> int:
        return self._index.blocks(inc)

    def forget(self, inc: Incarnation) -> None:
        """That life is over."""
        self._clear(inc)
        self._feeds.pop(inc.endpoint, None)
        self._lost.pop(inc.endpoint, None)
        self._asked.pop(inc.endpoint, None)
        self._heard.add(inc.endpoint)

    def sweep(self, budget: int) -> None:
        self._index.sweep(budget)

    def _clear(self, inc: Incarnation) -> None:
        """What was taken before is cleared too."""
        if self._told:
            self.settle()
        self._index.clear(inc)

    def _disbelieve(self, inc: Incarnation, why: str) -> None:
        self._counts[why] += 1
        self._clear(inc)
        self._feeds[inc.endpoint].incomplete()
        self._lost.pop(inc.endpoint, None)
