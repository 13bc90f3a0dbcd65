"""What the default profile promises, played over the real pool state in virtual time."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from epp.framework import EndpointId, Incarnation, PoolId, Request
from epp.request.plan.live import BuiltProfile
from epp.request.profiles import Mode, ModeSwitch
from epp.request.schedule import schedule
from epp.state import blocks
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook, LoadReport
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from tests.fakes.plans import Booth, default_built

POOL = PoolId("pool")
SEEDS = 200
SIZES = [16, 64, 600, 800, 4000]
ANSWERS = [1, 16, 128]


class World:
    """Some equal engines, the real mirror over them, and the real scheduler."""

    def __init__(self, seed: int, count: int = 4, profile: BuiltProfile | None = None) -> None:
        self.chance = Random(seed)
        self.booth = Booth()
        self.ids = [EndpointId(POOL, f"pod-{number}", 8000) for number in range(count)]
        self.index = PrefixIndex(100_000)
        self.load = LoadBook()
        self.state = PoolState(
            POOL, Endpoints(), self.index, PredictedIndex(100_000, 300.0), self.load
        )
        members = [Member(id=i, address=f"10.0.0.{n}:8000") for n, i in enumerate(self.ids)]
        self.state.replace(members, 0.0)
        self.lives: list[Incarnation] = []
        for ident in self.ids:
            life = self.state.endpoints.incarnation(ident)
            assert life is not None
            self.lives.append(life)
        self.profile = profile or PROFILE
        self.report([0] * count, 0.0)
        self._names: Iterator[int] = iter(range(10**9))

    def report(self, waiting: list[int], now: float, usage: float = 0.1) -> None:
        for life, depth in zip(self.lives, waiting, strict=True):
            report = LoadReport(
                waiting=depth, running=4, kv_usage=usage, total_blocks=20_000, block_tokens=16
            )
            self.load.report(life, report, now)

    def request(self, tokens: list[int], output: int = 128) -> Request:
        keys = keys_of(tuple(tokens))
        return Request(
            id=f"r{next(self._names)}",
            api="completions",
            path="/v1/completions",
            model="m",
            prompt_tokens=len(tokens),
            output_tokens=output,
            exact=True,
            keys=keys,
        )

    def hold(self, number: int, request: Request) -> None:
        self.index.store(self.lives[number], request.keys)

    def send(self, request: Request, now: float, *, by_prefix: bool = True) -> int:
        """The number of the endpoint that a request goes to."""
        keys = request.keys if by_prefix else ()
        request = replace(request, twins=self.state.twins(keys, now))
        found = self.state.candidates(
            keys, block_tokens=64, prompt_tokens=request.prompt_tokens, now=now
        )
        selection = schedule(request, found, self.profile, self.chance, self.booth.ballot)
        assert self.booth.failures == []
        chosen = selection.chosen[0]
        self.state.charge(chosen, request, now)
        return self.ids.index(chosen.id)


PROFILE = default_built().profiles["decode"]


@cache
def keys_of(tokens: tuple[int, ...]) -> tuple[int, ...]:
    return blocks.token_keys(tokens, blocks.seed_of("m"))


def prompt(chance: Random, tokens: int) -> list[int]:
    return [chance.randrange(50_000) for _ in range(tokens)]


@pytest.mark.parametrize("warm", [False, True], ids=["nobody-holds-it", "one-holds-it"])
@pytest.mark.parametrize("output", ANSWERS)
@pytest.mark.parametrize("tokens", SIZES)
def test_forty_equal_requests_at_once_never_put_more_than_fourteen_on_one_of_four(
    tokens: int, output: int, warm: bool
) -> None:
    ids = prompt(Random(0), tokens)
    for seed in range(SEEDS // 10):
        world = World(seed)
        if warm:
            world.hold(0, world.request(ids))
        shares = Counter(world.send(world.request(ids, output), 0.001) for _ in range(40))
        assert max(shares.values()) <= 14, (seed, shares)


@pytest.mark.parametrize("warm", [False, True], ids=["nobody-holds-it", "one-holds-it"])
@pytest.mark.parametrize("output", ANSWERS)
@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize("spacing_s", [0.001, 0.005])
def test_the_same_holds_while_their_first_tokens_come_and_some_finish(
    tokens: int, output: int, warm: bool, spacing_s: float
) -> None:
    """Red without `slowdown` and `crowding`: a quick, warm endpoint never has a queue."""
    ids = prompt(Random(0), tokens)
    for seed in range(SEEDS // 20):
        world = World(seed)
        chance = Random(seed + 1)
        if warm:
            world.hold(0, world.request(ids))
        events: list[tuple[float, str, Callable[[str, float], None]]] = []
        shares: Counter[int] = Counter()
        computed = [0.0] * 4
        if warm:
            computed[0] = 1e-9
        for number in range(40):
            now = spacing_s * number
            while events and events[0][0] <= now:
                at, name, tell = heapq.heappop(events)
                tell(name, at)
            request = world.request(ids, output)
            where = world.send(request, now)
            shares[where] += 1
            computed[where] = computed[where] or now + tokens / 8000 * chance.uniform(0.7, 1.5)
            first = max(now, computed[where]) + chance.uniform(0.005, 0.05)
            end = first + output * chance.uniform(0.01, 0.04)
            heapq.heappush(events, (first, request.id, world.state.first_byte))
            heapq.heappush(events, (end, request.id, world.state.finished))
        assert max(shares.values()) <= 14, (seed, shares)


@pytest.mark.parametrize(
    ("tokens", "ahead"), [(128, 0), (600, 0), (2000, 1), (4000, 2), (12_000, 8)]
)
def test_a_cached_prefix_wins_where_it_saves_more_than_the_queue_costs(
    tokens: int, ahead: int
) -> None:
    ids = prompt(Random(1), tokens)
    for seed in range(20):
        world = World(seed)
        world.hold(2, world.request(ids))
        world.report([0, 0, ahead, 0], 0.5)
        assert world.send(world.request(ids), 0.6) == 2


@pytest.mark.parametrize("tokens", [128, 600, 4000])
def test_a_cached_prefix_is_left_where_its_queue_costs_more(tokens: int) -> None:
    ids = prompt(Random(1), tokens)
    world = World(3)
    world.hold(2, world.request(ids))
    world.report([0, 0, 8, 0], 0.5)
    assert world.send(world.request(ids), 0.6) != 2


def test_a_longer_prefix_is_worth_a_longer_queue() -> None:
    def longest_queue(tokens: int) -> int:
        ids = prompt(Random(1), tokens)
        for ahead in range(20):
            world = World(3)
            world.hold(2, world.request(ids))
            world.report([0, 0, ahead, 0], 0.5)
            if world.send(world.request(ids), 0.6) != 2:
                return ahead
        return 20

    assert longest_queue(128) < longest_queue(2000) < longest_queue(6000)


def test_b06_a_burst_without_a_common_prefix_spreads() -> None:
    """B06: own counts join the lagging reports at once. Red without `Cost.wait` and what
    follows from `busy`."""
    for seed in range(20):
        world = World(seed)
        chance = Random(seed)
        shares = Counter(
            world.send(world.request(prompt(chance, 256)), 0.0005 * n) for n in range(100)
        )
        assert max(shares.values()) <= 40, shares


@pytest.mark.parametrize("told", [True, False], ids=["with-reports", "without-reports"])
def test_b11_a_hot_prefix_spreads_over_the_pool_once_one_endpoint_is_full(told: bool) -> None:
    """B11: load overrides the prefix once it costs more. Red without `wait` and `crowding`."""
    hot = prompt(Random(2), 4096)
    for seed in range(5):
        world = World(seed)
        chance = Random(seed)
        world.hold(0, world.request(hot))
        queues: list[list[float]] = [[], [], [], []]
        shares: Counter[int] = Counter()
        ends: list[tuple[float, str]] = []
        service_s, now, reported = 0.05, 0.0, 0.0
        for _ in range(400):
            now += chance.expovariate(4 / service_s)
            while ends and ends[0][0] <= now:
                at, name = heapq.heappop(ends)
                world.state.first_byte(name, at)
                world.state.finished(name, at)
            if told and now - reported > 0.1:
                reported = now
                depths = [sum(end > now for end in queue) for queue in queues]
                world.report([max(0, depth - 1) for depth in depths], now)
            request = world.request(hot + prompt(chance, 128), output=1)
            number = world.send(request, now)
            shares[number] += 1
            begin = max([now, *queues[number][-1:]])
            queues[number].append(begin + service_s)
            heapq.heappush(ends, (begin + service_s, request.id))
        assert max(shares.values()) <= 200, shares
        assert len(shares) == 4, shares
        assert min(shares.values()) >= 40, shares


def test_b12_one_overloaded_endpoint_does_not_switch_off_affinity_for_the_others() -> None:
    """B12: seconds are absolute. Red where they are set against those of the busiest."""

    def hits(queue: int) -> float:
        landed = total = 0
        for seed in range(10):
            world = World(seed)
            chance = Random(seed)
            prompts = [prompt(chance, 1024) for _ in range(30)]
            for number, ids in enumerate(prompts):
                world.hold(1 + number % 3, world.request(ids))
            for step in range(90):
                now = 0.02 * step
                world.report([queue, 0, 0, 0], now)
                number = chance.randrange(30)
                request = world.request(prompts[number])
                landed += world.send(request, now) == 1 + number % 3
                total += 1
                world.state.finished(request.id, now + 0.01)
        return landed / total

    assert abs(hits(200) - hits(0)) <= 0.05
    assert hits(200) >= 0.9


def test_b12_the_others_still_share_their_load_beside_an_overloaded_one() -> None:
    """B12, the other way round: 200 waiting on one must not hide 8 waiting on another."""
    ids = prompt(Random(1), 1024)
    world = World(1)
    world.hold(1, world.request(ids))
    world.report([200, 8, 0, 0], 0.5)
    assert world.send(world.request(ids), 0.6) in {2, 3}


def test_a_pool_whose_reports_are_all_stale_spreads_evenly() -> None:
    for seed in range(10):
        world = World(seed)
        shares = Counter(world.send(world.request([1] * 32), 100.0) for _ in range(200))
        assert max(shares.values()) <= 60, shares


def test_an_endpoint_of_unknown_load_is_not_preferred_to_known_idle_ones() -> None:
    world = World(1)
    for life in world.lives[:3]:
        world.load.report(life, LoadReport(waiting=1, running=1, kv_usage=0.3), 100.0)
    assert world.send(world.request([1] * 32), 100.1) != 3


def test_load_only_does_not_look_at_prefixes() -> None:
    ids = prompt(Random(1), 1024)
    world = World(1, profile=PROFILE.without("prefix-match", "load-only"))
    world.hold(2, world.request(ids))
    world.report([0, 0, 1, 0], 0.5)
    assert world.send(world.request(ids), 0.6, by_prefix=False) != 2
    assert world.profile.weights == PROFILE.weights


def test_the_switch_takes_known_modes_only() -> None:
    switch = ModeSwitch()
    assert switch.mode is Mode.NORMAL
    switch.switch("random")
    assert switch.mode is Mode.RANDOM
    with pytest.raises(ValueError, match="is not a valid Mode"):
        switch.switch("fast")
    assert switch.mode is Mode.RANDOM
    assert switch.modes == ("normal", "load-only", "random", "shadow")
