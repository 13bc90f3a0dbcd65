"""PrefixIndex and PredictedIndex against models that look at everything each time."""

from collections import Counter, defaultdict
from math import inf

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.prefix import GPU, PredictedIndex, PrefixIndex, Told
from epp.state.prefix.holders import Holders, as_keys
from epp.state.prefix.index import EVERYBODY
from epp.state.prefix.stretches import Stretches

LIVES = [
    Incarnation(EndpointId(PoolId("p"), name, port), start)
    for name in "ab"
    for port in (1, 2)
    for start in (1, 2)
]
TIERS = (GPU, "CPU", "DISK", "SHARED", "SOMEWHERE")
lives = st.sampled_from(LIVES)
tiers = st.sampled_from(TIERS)
some_keys = st.lists(st.integers(0, 12), max_size=8)
prompt_keys = st.lists(st.integers(0, 12), max_size=8, unique=True)
LIMIT = 7
starts = st.integers(0, 300)
sizes = st.integers(1, 200)


def life(at: int) -> Incarnation:
    return Incarnation(EndpointId(PoolId("p"), str(at), 1), 1)


class IndexMachine(RuleBasedStateMachine):
    """Any order of changes leaves what a dict of sets would hold (fault C26)."""

    def __init__(self) -> None:
        super().__init__()
        self.real = PrefixIndex(LIMIT)
        self.model: dict[tuple[str, Incarnation], set[int]] = defaultdict(set)
        self.forgotten: set[Incarnation] = set()
        self.refused = 0
        self.late = 0

    @rule(inc=lives, keys=some_keys, tier=tiers, packed=st.booleans())
    def store(self, inc: Incarnation, keys: list[int], tier: str, packed: bool) -> None:
        self.real.store(inc, np.array(keys, np.uint64) if packed else keys, tier)
        self._stored(inc, keys, tier)

    @rule(inc=lives, keys=some_keys, tier=tiers, twice=st.booleans())
    def remove(self, inc: Incarnation, keys: list[int], tier: str, twice: bool) -> None:
        for _ in range(1 + twice):
            self.real.remove(inc, keys, tier)
        self._removed(inc, keys, tier)

    @rule(tier=tiers, said=st.lists(st.tuples(lives, some_keys, some_keys), max_size=6))
    def tell(self, tier: str, said: list[tuple[Incarnation, list[int], list[int]]]) -> None:
        """Many at once are as one after the other, at the limit too."""
        self.real.tell([Told(*one) for one in said], tier)
        for inc, removed, stored in said:
            self._removed(inc, removed, tier)
            self._stored(inc, stored, tier)

    @rule(inc=lives)
    def clear(self, inc: Incarnation) -> None:
        self.real.clear(inc)
        self._clear(inc)

    @rule(inc=lives)
    def forget(self, inc: Incarnation) -> None:
        self.real.forget(inc)
        self._clear(inc)
        self.forgotten.add(inc)

    @rule(kept=st.sets(lives))
    def retain(self, kept: set[Incarnation]) -> None:
        for inc in LIVES:
            # One that holds nothing any more may be known still; the model follows the index.
            if inc not in kept and any(inc in holders for holders in self.real._all()):
                self._clear(inc)
                self.forgotten.add(inc)
        self.real.retain(kept)
        self.forgotten -= kept

    @rule(budget=st.integers(0, 200))
    def sweep(self, budget: int) -> None:
        before = self.real.retired_blocks
        assert self.real.sweep(budget) <= before

    @rule(keys=prompt_keys, asked=st.lists(lives, unique=True), frozen=st.booleans())
    def lookup(self, keys: list[int], asked: list[Incarnation], frozen: bool) -> None:
        expected = {inc: depth for inc in asked if (depth := sum(self._depths(inc, keys).values()))}
        assert self.real.lookup(keys, tuple(asked) if frozen else asked) == expected

    @rule(keys=prompt_keys, asked=st.lists(lives, unique=True))
    def tier_depths(self, keys: list[int], asked: list[Incarnation]) -> None:
        found = self.real.tier_depths(keys, tuple(asked))
        for row, inc in enumerate(asked):
            expected = self._depths(inc, keys)
            assert int(found.gpu[row]) == expected.pop(GPU, 0)
            loaded = {tier: int(blocks[row]) for tier, blocks in found.loaded.items()}
            assert {tier: blocks for tier, blocks in loaded.items() if blocks} == expected

    @invariant()
    def counts_agree(self) -> None:
        for inc in LIVES:
            for tier in TIERS:
                assert self.real.blocks(inc, tier) == len(self.model[self._place(tier, inc)])
        assert (self.real.refused, self.real.late) == (self.refused, self.late)
        live = {tier: set[int]() for tier in TIERS}
        for (tier, _), held in self.model.items():
            live[tier] |= held
        assert len(self.real) >= sum(map(len, live.values()))
        assert len(self.real) <= sum(map(len, live.values())) + self.real.retired_blocks

    def _place(self, tier: str, inc: Incarnation) -> tuple[str, Incarnation]:
        return tier, EVERYBODY if tier == "SHARED" else inc

    def _gives(self, tier: str, inc: Incarnation, keys: list[int], at: int) -> bool:
        """Whether a tier holds the whole chunk that a block is in."""
        chunk = 4 if tier == "SHARED" else 1
        piece = keys[at - at % chunk :][:chunk]
        return len(piece) == chunk and self.model[self._place(tier, inc)].issuperset(piece)

    def _clear(self, inc: Incarnation) -> None:
        for tier in TIERS:
            self.model[tier, inc].clear()

    def _stored(self, inc: Incarnation, keys: list[int], tier: str) -> None:
        if inc in self.forgotten:
            self.late += len(keys)
            return
        held = self.model[self._place(tier, inc)]
        for key in dict.fromkeys(keys):
            if key not in held and len(held) < LIMIT:
                held.add(key)
            elif key not in held:
                self.refused += 1

    def _removed(self, inc: Incarnation, keys: list[int], tier: str) -> None:
        if inc not in self.forgotten:
            self.model[self._place(tier, inc)] -= set(keys)

    def _depths(self, inc: Incarnation, keys: list[int]) -> Counter[str]:
        """Where an engine finds the beginning of a prompt, block by block."""
        found: Counter[str] = Counter()
        usable = TIERS
        for at in range(len(keys)):
            holding = [tier for tier in usable if self._gives(tier, inc, keys, at)]
            if not holding:
                break
            found[holding[0]] += 1
            if holding[0] != GPU:
                usable = TIERS[1:]
        return found


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=30)


class HoldersMachine(RuleBasedStateMachine):
    """Many holders of many keys, in batches: every form in which holders are kept, and each change
    from one to another."""

    def __init__(self) -> None:
        super().__init__()
        self.real = Holders(1_000_000)
        self.model: dict[Incarnation, set[int]] = defaultdict(set)
        self.everybody = tuple(life(at) for at in range(150))

    @rule(first=st.integers(0, 140), count=st.integers(1, 80), start=starts, size=sizes)
    def store(self, first: int, count: int, start: int, size: int) -> None:
        for inc in self.everybody[first : first + count]:
            self.real.tell((Told(inc, stored=range(start, start + size)),))
            self.model[inc] |= set(range(start, start + size))

    @rule(first=st.integers(0, 140), count=st.integers(1, 150), start=starts, size=sizes)
    def remove(self, first: int, count: int, start: int, size: int) -> None:
        for inc in self.everybody[first : first + count]:
            self.real.tell((Told(inc, removed=range(start, start + size)),))
            self.model[inc] -= set(range(start, start + size))

    @rule(
        said=st.lists(
            st.tuples(st.integers(0, 149), starts, sizes, starts, sizes), min_size=2, max_size=30
        )
    )
    def many_say_something(self, said: list[tuple[int, int, int, int, int]]) -> None:
        told = []
        for at, gone, less, come, more in said:
            inc, removed = self.everybody[at], range(gone, gone + less)
            stored = range(come, come + more)
            told.append(Told(inc, removed, stored))
            self.model[inc] = self.model[inc].difference(removed).union(stored)
        self.real.tell(told)

    @rule(first=st.integers(0, 149), count=st.integers(1, 50))
    def clear(self, first: int, count: int) -> None:
        for inc in self.everybody[first : first + count]:
            self.real.clear(inc)
            self.model[inc].clear()

    @rule(budget=st.integers(0, 5_000))
    def sweep(self, budget: int) -> None:
        self.real.sweep(budget)

    @rule(start=starts, size=sizes)
    def depths(self, start: int, size: int) -> None:
        keys = range(start, start + size)
        held = [self.model[inc] for inc in self.everybody]
        expected = [
            next((at for at, key in enumerate(keys) if key not in mine), size) for mine in held
        ]
        assert self.real.depths(as_keys(keys), self.everybody).tolist() == expected
        marks = [[key in mine for mine in held] for key in keys]
        assert self.real.matrix(as_keys(keys), self.everybody).tolist() == marks

    @invariant()
    def counts_agree(self) -> None:
        for inc in self.everybody:
            assert self.real.blocks(inc) == len(self.model[inc])

    def teardown(self) -> None:
        """Once all is cleared and swept nothing is left."""
        for inc in self.everybody:
            self.real.clear(inc)
        while self.real.retired:
            self.real.sweep(1_000)
        self.real.sweep(1_000_000)
        assert (len(self.real), self.real.slots, self.real.nbytes <= 5_000) == (0, 0, True)


TestHoldersMachine = HoldersMachine.TestCase
TestHoldersMachine.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)

# Prompts as paths in a tree: a key stands for a whole prefix, as in block chains.
prompts = st.lists(st.integers(1, 2), min_size=1, max_size=6).map(
    lambda path: tuple(hash(tuple(path[: end + 1])) for end in range(len(path)))
)
TTL = 10.0


class PredictedMachine(RuleBasedStateMachine):
    """Without want of room, exactly the predictions count that nothing has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.real = PredictedIndex(10_000, TTL)
        self.now = 0.0
        self.open: dict[tuple[str, Incarnation], tuple[tuple[int, ...], float]] = {}
        self.settled: list[tuple[Incarnation, tuple[int, ...], float]] = []

    @rule(by=st.floats(0, 4))
    def time_passes(self, by: float) -> None:
        self.now += by

    @rule(inc=lives, keys=prompts, request=st.sampled_from("xyz"))
    def insert(self, inc: Incarnation, keys: tuple[int, ...], request: str) -> None:
        self.real.insert(inc, keys, request, self.now)
        self.open[request, inc] = (keys, self.now + TTL)

    @rule(request=st.sampled_from("xyz"))
    def drop(self, request: str) -> None:
        self.real.drop(request)
        for place in [place for place in self.open if place[0] == request]:
            del self.open[place]

    @rule(request=st.sampled_from("xyz"), grace=st.floats(0, 5))
    def confirm(self, request: str, grace: float) -> None:
        # A prediction that ran out is swept some time later: nobody confirms it any more.
        for place in [place for place in self.open if place[0] == request]:
            if self.open[place][1] <= self.now:
                return
        self.real.confirm(request, self.now, grace)
        for place in [place for place in self.open if place[0] == request]:
            keys, _ = self.open.pop(place)
            self.settled.append((place[1], keys, self.now + grace))

    @rule(inc=lives)
    def forget(self, inc: Incarnation) -> None:
        self.real.forget(inc)
        self.open = {
            place: (() if place[1] == inc else keys, until)
            for place, (keys, until) in self.open.items()
        }
        self.settled = [one for one in self.settled if one[0] != inc]

    @rule(keys=prompts)
    def lookup(self, keys: tuple[int, ...]) -> None:
        live = [(inc, ks) for (_, inc), (ks, until) in self.open.items() if until > self.now]
        live += [(inc, ks) for inc, ks, until in self.settled if until > self.now]
        expected = {}
        for inc in LIVES:
            held = {key for one, ks in live if one == inc for key in ks}
            depth = next((at for at, key in enumerate(keys) if key not in held), len(keys))
            if depth:
                expected[inc] = depth
        assert self.real.lookup(keys, LIVES, self.now) == expected


TestPredictedMachine = PredictedMachine.TestCase
TestPredictedMachine.settings = settings(max_examples=60, stateful_step_count=30)


@example(
    # The third prompt ends within a stretch: both its parts stay older than what is before them.
    steps=[
        (LIVES[0], (1,), "v", "i"),
        (LIVES[0], (1, 2, 3, 4), "u", "i"),
        (LIVES[1], (1, 2, 3), "w", "i"),
    ],
    limit=4,
)
@given(
    st.lists(st.tuples(lives, prompts, st.sampled_from("uvwxyz"), st.sampled_from("idcf"))),
    st.integers(1, 12),
)
def test_however_small_it_is_the_predicted_index_stays_bounded_and_whole(
    steps: list[tuple[Incarnation, tuple[int, ...], str, str]], limit: int
) -> None:
    index = PredictedIndex(limit, TTL)
    for now, (inc, keys, request, what) in enumerate(steps):
        match what:
            case "i":
                index.insert(inc, keys, request, now)
                assert index.lookup(keys, [inc], now) == {inc: min(len(keys), limit)}
            case "d":
                index.drop(request)
            case "c":
                index.confirm(request, now, 3)
            case _:
                index.forget(inc)
        held = sum(one.blocks for one in index._held._holders.values())
        gone = sum(one.blocks for one in index._gone)
        assert len(index) == held + gone
        assert held <= limit
        assert index._references == sum(
            one.size for predictions in index._open.values() for one in predictions
        )
        assert index._references <= 4 * limit
        _is_whole(index._held, now)


def _is_whole(tree: Stretches, now: float) -> None:
    """Whoever holds a stretch holds those before it, as long; all that is kept is counted once."""
    every = list(tree._first.values())
    for stretch in every:
        assert stretch.bits == sum(1 << slot for slot in stretch.holds)
        assert stretch.sure <= min(hold.end for hold in stretch.holds.values())
        before = [one for one in every if one.start + len(one.keys) == stretch.start]
        for slot, hold in stretch.holds.items():
            assert hold.end <= max(
                [one.holds[slot].end for one in before if slot in one.holds]
                or [inf if not stretch.start else now]
            )
    held = [hold for one in every for hold in one.holds.values()]
    assert set(held) == set(tree.order)
    assert sum(len(hold.stretch.keys) for hold in held) == tree.size
