"""Two replicas that share log and sums use the engines' caches as well as one does."""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from epp.sim.settings import CoreSettings
from tests.fakes import workloads
from tests.fakes.virtual_fleet import GPU, Ask
from tests.fakes.virtual_replicas import ReplicatedFleet

SEEDS = range(1, 4)


Workload = Callable[[Random], Sequence[Ask]]


def chats(chance: Random) -> Sequence[Ask]:
    return workloads.chats(chance, 3, 60)


def documents(chance: Random) -> Sequence[Ask]:
    """Long enough that many ask about one that is still being read."""
    return workloads.documents(chance, 4, 120)


def reuse(replicas: int, workload: Workload) -> float:
    """The share of prompt tokens that came from a cache, over all seeds."""
    cached = asked = 0
    for seed in SEEDS:
        engines = [CoreSettings(**GPU)] * 3
        scorers = (("cost-scorer", 1.0, dict[str, object]()),)
        fleet = ReplicatedFleet(engines, scorers, replicas=replicas, seed=seed)
        served = fleet.run(workload(Random(seed)))
        cached += sum(one.cached for one in served)
        asked += sum(len(one.ask.tokens) for one in served)
    return cached / asked


@pytest.mark.parametrize("workload", [chats, documents])
def test_reuse_with_two_replicas_is_within_two_percent_of_one(workload: Workload) -> None:
    one = reuse(1, workload)
    assert one > 0.5
    assert reuse(2, workload) >= 0.98 * one
