"""Two replicas that share log and sums use the engines' caches as well as one does, for chats."""

from random import Random

from epp.sim.settings import CoreSettings
from tests.fakes import workloads
from tests.fakes.virtual_fleet import GPU
from tests.fakes.virtual_replicas import ReplicatedFleet

SEEDS = range(1, 6)


def reuse(replicas: int) -> float:
    """The share of prompt tokens that came from a cache, over all seeds."""
    cached = asked = 0
    for seed in SEEDS:
        engines = [CoreSettings(**GPU)] * 3
        scorers = (("cost-scorer", 1.0, dict[str, object]()),)
        fleet = ReplicatedFleet(engines, scorers, replicas=replicas, seed=seed)
        served = fleet.run(workloads.chats(Random(seed), 3, 60))
        cached += sum(one.cached for one in served)
        asked += sum(len(one.ask.tokens) for one in served)
    return cached / asked


def test_reuse_with_two_replicas_is_within_two_percent_of_one() -> None:
    one = reuse(1)
    assert one > 0.5
    assert reuse(2) >= 0.98 * one
