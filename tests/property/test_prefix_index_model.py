"""PrefixIndex and PredictedIndex against models that look at everything each time."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.prefix import PredictedIndex, PrefixIndex

LIVES = [
    Incarnation(EndpointId(PoolId("p"), name, port), start)
    for name in "ab"
    for port in (1, 2)
    for start in (1, 2)
]
lives = st.sampled_from(LIVES)
some_keys = st.lists(st.integers(0, 12), max_size=8)
LIMIT = 7


class IndexMachine(RuleBasedStateMachine):
    """Any order of changes leaves what a dict of sets would hold (fault C26)."""

    def __init__(self) -> None:
        super().__init__()
        self.real = PrefixIndex(LIMIT)
        self.model: dict[Incarnation, set[int]] = defaultdict(set)
        self.forgotten: set[Incarnation] = set()
        self.refused = 0

    @rule(inc=lives, keys=some_keys, twice=st.booleans())
    def store(self, inc: Incarnation, keys: list[int], twice: bool) -> None:
        for _ in range(1 + twice):
            self.real.store(inc, keys)
            for key in () if inc in self.forgotten else keys:
                if key in self.model[inc]:
                    continue
                if len(self.model[inc]) < LIMIT:
                    self.model[inc].add(key)
                else:
                    self.refused += 1

    @rule(inc=lives, keys=some_keys, twice=st.booleans())
    def remove(self, inc: Incarnation, keys: list[int], twice: bool) -> None:
        for _ in range(1 + twice):
            self.real.remove(inc, keys)
        self.model[inc] -= set(keys)

    @rule(inc=lives)
    def clear(self, inc: Incarnation) -> None:
        self.real.clear(inc)
        self.model[inc].clear()

    @rule(inc=lives)
    def forget(self, inc: Incarnation) -> None:
        self.real.forget(inc)
        self.model[inc].clear()
        self.forgotten.add(inc)

    @rule(kept=st.sets(lives))
    def retain(self, kept: set[Incarnation]) -> None:
        for inc in LIVES:
            if inc not in kept and self.model[inc]:
                self.model[inc].clear()
                self.forgotten.add(inc)
            # A slot that is open though empty is forgotten as well; the model follows the index.
            elif inc not in kept and inc in self.real._gpu:
                self.forgotten.add(inc)
        self.real.retain(kept)
        self.forgotten -= kept

    @rule(budget=st.integers(0, 5))
    def sweep(self, budget: int) -> None:
        before = self.real.retired_blocks
        assert self.real.sweep(budget) == min(budget, before)

    @rule(keys=some_keys, asked=st.lists(lives, unique=True), frozen=st.booleans())
    def lookup(self, keys: list[int], asked: list[Incarnation], frozen: bool) -> None:
        expected = {}
        for inc in asked:
            depth = next(
                (at for at, key in enumerate(keys) if key not in self.model[inc]), len(keys)
            )
            if depth:
                expected[inc] = depth
        assert self.real.lookup(keys, tuple(asked) if frozen else asked) == expected

    @invariant()
    def counts_agree(self) -> None:
        for inc in LIVES:
            assert self.real.blocks(inc) == len(self.model[inc])
        assert self.real.refused == self.refused
        live = set().union(*self.model.values())
        assert live <= set(self.real._gpu._holders)
        assert len(self.real) <= len(live) + self.real.retired_blocks


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=30)

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
        held = sum(len(there) for there in index._blocks.values())
        assert held + sum(map(len, index._gone)) >= len(index) >= held
        assert held <= limit
        assert index._references == sum(
            one.size for predictions in index._open.values() for one in predictions
        )
        assert index._references <= 4 * limit
        # A held block's predecessors are held too: what a lookup's halving relies on.
        depths = index.lookup(keys, LIVES, now)
        for one in LIVES:
            there = index._blocks.get(one, {})
            live = [key for key in keys if key in there and there[key].live(now)]
            assert len(live) == depths.get(one, 0)
