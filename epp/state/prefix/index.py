"""Which endpoints hold which own blocks, by their engines' word, on the GPU and on slower tiers.

An engine uses what it holds from a prompt's first block on: first what is on its GPU, then what it
can load from slower tiers from there on. A block beyond that is of no use, wherever it is. So the
slower tiers are asked from the place on where the GPU ends.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.blocks import OWN_BLOCK_TOKENS

from .holders import Holders, Keys, Told, as_keys
from .keytable import U64
from .tiers import GPU, MAX_TIERS, tier_of
from .walk import Depths

MAX_KEYS = 30_000_000
"""Keys of one pool: about a gigabyte."""
CROWDED, CLEARED = 7 / 8, 3 / 4
"""Shares of the limit from which on old keys are looked for, and down to which they go."""
EVICT_PER_KEY = 48
"""Lanes looked at for each key that comes while it is crowded. A table has three lanes for a key at
most, and each is looked at twice: so room is made before the limit is reached."""
EPOCH_S = 900.0
SHARED_EPOCHS = 4
"""A block on a shared tier that nobody told of or asked for in so many epochs counts no more: some
of those tiers never say what they drop."""
MAX_FORGOTTEN = 4096
"""Forgotten incarnations whose late events we still refuse."""
EVERYBODY = Incarnation(EndpointId(PoolId(""), "", 0), 0)
"""Who holds the blocks of a shared tier."""


@dataclass(frozen=True, slots=True)
class TierDepths:
    """One number of leading blocks for each endpoint that was asked for, in their order."""

    gpu: Depths
    loaded: Mapping[str, Depths]
    """Blocks right after those that come from each slower tier; tiers of no use are left out."""

    @property
    def whole(self) -> Depths:
        """Blocks that need not be computed, wherever they are."""
        return sum(self.loaded.values(), start=self.gpu)


class PrefixIndex:
    """Own block keys of all engines in a pool. Every change is idempotent.

    A tier is named as in `records.TierChange`.
    """

    def __init__(
        self,
        max_blocks_per_endpoint: int,
        own_block_tokens: int = OWN_BLOCK_TOKENS,
        *,
        max_keys: int = MAX_KEYS,
    ) -> None:
        """Blocks beyond so many of one endpoint on one tier are refused; the oldest claims stay.
        Where there are nearly `max_keys` those go of which nobody spoke for longest."""
        self._limit = max_blocks_per_endpoint
        self._max_keys = max_keys
        self._began_at: float | None = None
        self._epoch = 0
        self._own_block_tokens = own_block_tokens
        self._gpu = Holders(max_blocks_per_endpoint)
        self._slower: dict[str, Holders] = {}
        """By the name of the tier, those that load faster first."""
        self._forgotten: OrderedDict[Incarnation, None] = OrderedDict()
        self.late = 0
        """Blocks of forgotten incarnations, not stored."""
        self.refused_tiers = 0
        """Blocks of more tiers than `MAX_TIERS`, not stored."""

    def __len__(self) -> int:
        """Keys in the index on all tiers, retired ones among them until they are swept."""
        return sum(len(tier) for tier in self._all())

    @property
    def refused(self) -> int:
        """Blocks over the limit of their endpoint, not stored."""
        return sum(tier.refused for tier in self._all())

    @property
    def evicted(self) -> int:
        """Keys that had to go for want of room, or on shared tiers for their age."""
        return sum(tier.evicted for tier in self._all())

    @property
    def retired_blocks(self) -> int:
        """Blocks that still wait to be swept."""
        return sum(tier.retired for tier in self._all())

    @property
    def nbytes(self) -> int:
        """Memory of keys and their holders."""
        return sum(tier.nbytes for tier in self._all())

    @property
    def slots(self) -> int:
        """Endpoints that hold blocks on the GPU, and those of them that wait to be swept."""
        return self._gpu.slots

    @property
    def tiers(self) -> tuple[str, ...]:
        """Slower tiers that were heard of, those that load faster first."""
        return tuple(self._slower)

    def blocks(self, inc: Incarnation, tier: str = GPU) -> int:
        """How many blocks `inc` holds there; on a shared tier, how many anybody does."""
        holders = self._gpu if tier == GPU else self._slower.get(tier)
        return 0 if holders is None else holders.blocks(_holder(inc, tier))

    def store(self, inc: Incarnation, keys: Keys, tier: str = GPU) -> None:
        """`inc` holds `keys` too."""
        self.tell((Told(inc, stored=keys),), tier)

    def remove(self, inc: Incarnation, keys: Keys, tier: str = GPU) -> None:
        """`inc` no longer holds `keys` there; those that it didn't are passed over."""
        self.tell((Told(inc, removed=keys),), tier)

    def tell(self, told: Sequence[Told], tier: str = GPU) -> None:
        """Take over what each said of one tier, the first first, as `remove` and `store` would."""
        welcome = [one for one in told if one.inc not in self._forgotten]
        self.late += sum(len(one.stored) for one in told if one.inc in self._forgotten)
        news = sum(len(one.stored) for one in welcome)
        holders = self._gpu if tier == GPU else self._open(tier) if news else self._slower.get(tier)
        if holders is None:
            self.refused_tiers += news
            return
        self._make_room(EVICT_PER_KEY * news)
        if tier_of(tier).shared:
            welcome = [Told(EVERYBODY, one.removed, one.stored) for one in welcome]
        holders.tell(welcome, self._max_keys - len(self))

    def clear(self, inc: Incarnation) -> None:
        """`inc` holds nothing of its own on any tier. The cost doesn't depend on how much it held.

        What it wrote to shared tiers stays.
        """
        for holders in self._all():
            holders.clear(inc)

    def forget(self, inc: Incarnation) -> None:
        """`inc` is gone for good: clear it, and refuse and count what its writer still sends."""
        self.clear(inc)
        self._forgotten[inc] = None
        self._forgotten.move_to_end(inc)
        if len(self._forgotten) > MAX_FORGOTTEN:
            self._forgotten.popitem(last=False)

    def retain(self, incs: Iterable[Incarnation]) -> None:
        """Forget all others. A forgotten one that is named here is welcome again."""
        kept = set(incs)
        for inc in {inc for tier in self._all() for inc in tier} - kept - {EVERYBODY}:
            self.forget(inc)
        for inc in kept:
            self._forgotten.pop(inc, None)

    def lookup(self, keys: Keys, incs: Collection[Incarnation]) -> dict[Incarnation, int]:
        """How many leading `keys` each of `incs` need not compute. Who holds none is absent."""
        asked = tuple(incs)
        found = zip(asked, self.depths(keys, asked).tolist(), strict=True)
        return {inc: depth for inc, depth in found if depth}

    def depths(self, keys: Keys, incs: tuple[Incarnation, ...]) -> Depths:
        """The same as one number for each of `incs`, in their order; 0 where none is held.

        Faster when `incs` is the same tuple as the last time.
        """
        return self.tier_depths(keys, incs).whole

    def tier_depths(self, keys: Keys, incs: tuple[Incarnation, ...]) -> TierDepths:
        """The same, told apart by where the blocks are. Of several tiers that hold a block the one
        that loads faster counts."""
        slower = [(name, holders) for name, holders in self._slower.items() if len(holders)]
        if not slower and not len(self._gpu):
            return TierDepths(np.zeros(len(incs), np.int64), {})
        wanted = as_keys(keys)
        gpu = self._gpu.depths(wanted, incs)
        if not slower or not len(incs):
            return TierDepths(gpu, {})
        return TierDepths(gpu, self._loaded(slower, wanted, incs, gpu))

    def age(self, now: float, budget: int) -> None:
        """Let go of what is old, where that is called for; looks at `budget` lanes of a tier."""
        if self._began_at is None:
            self._began_at = now
        epoch = int((now - self._began_at) // EPOCH_S)
        if epoch != self._epoch:
            self._epoch = epoch
            for holders in self._all():
                holders.begin_epoch(epoch)
        self._make_room(budget)
        for name, holders in self._slower.items():
            if tier_of(name).shared:
                holders.drop_older(SHARED_EPOCHS, budget)

    def sweep(self, budget: int) -> int:
        """Take away up to `budget` retired blocks; returns how many that were."""
        swept = 0
        for holders in self._all():
            swept += holders.sweep(budget - swept)
        return swept

    def _loaded(
        self,
        slower: Sequence[tuple[str, Holders]],
        keys: U64,
        incs: tuple[Incarnation, ...],
        gpu: Depths,
    ) -> dict[str, Depths]:
        """How many keys right after those on the GPU come from each of the slower tiers."""
        first = int(gpu.min())
        missing = np.arange(first, len(keys))[:, None] >= gpu
        from_tier: dict[str, NDArray[np.bool_]] = {}
        for name, holders in slower:
            tier = tier_of(name)
            chunk = -(-tier.chunk_tokens // self._own_block_tokens)
            begin = first - first % chunk
            held = holders.matrix(keys[begin:], (EVERYBODY,) if tier.shared else incs)
            from_tier[name] = missing & _whole(held, chunk)[first - begin :]
            missing &= ~from_tier[name]
        counted = np.logical_and.accumulate(~missing, axis=0)
        found = ((name, (here & counted).sum(axis=0)) for name, here in from_tier.items())
        return {name: blocks for name, blocks in found if blocks.any()}

    def _make_room(self, budget: int) -> None:
        """Let the oldest keys go where there are nearly too many, `budget` lanes on."""
        clearing = next((tier for tier in self._all() if tier.clearing), None)
        if clearing is None and len(self) > CROWDED * self._max_keys:
            clearing = max(self._all(), key=len)
        if clearing is not None:
            clearing.evict(budget, len(self) - int(CLEARED * self._max_keys))

    def _all(self) -> list[Holders]:
        return [self._gpu, *self._slower.values()]

    def _open(self, tier: str) -> Holders | None:
        found = self._slower.get(tier)
        if found is None and len(self._slower) < MAX_TIERS:
            found = self._slower[tier] = Holders(self._limit)
            found.begin_epoch(self._epoch)
            order = sorted(self._slower, key=_order)
            self._slower = {name: self._slower[name] for name in order}
        return found


def _holder(inc: Incarnation, tier: str) -> Incarnation:
    return EVERYBODY if tier_of(tier).shared else inc


def _whole(held: NDArray[np.bool_], chunk: int) -> NDArray[np.bool_]:
    """Those in pieces of `chunk` rows that are held altogether."""
    if chunk == 1:
        return held
    full = len(held) - len(held) % chunk
    pieces = held[:full].reshape(-1, chunk, held.shape[1]).all(axis=1)
    whole = np.zeros_like(held)
    whole[:full] = pieces.repeat(chunk, axis=0)
    return whole


def _order(tier: str) -> tuple[float, bool, str]:
    known = tier_of(tier)
    return -known.pace, known.shared, tier
