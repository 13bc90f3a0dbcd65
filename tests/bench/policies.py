"""Scorers against each other on simulated engines, in virtual time.

`python -m tests.bench.policies [WORKLOAD…]`; `SEEDS=5` repeats, words choose among the workloads.

Prints, of each workload and policy, the share of prompt tokens that came from a cache, the time to
the first token (mean, 90th and 99th percentile), the time of whole answers, and the shares of the
least and the most used of four engines. The engines have no cost of attention: what a policy pays
for blocks in use shows as nothing here.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from epp.sim.settings import CoreSettings
from tests.fakes import workloads
from tests.fakes.virtual_fleet import GPU, Ask, Fleet, Served, Weights

LOAD: Weights = (
    ("queue-scorer", 3, {"minRange": 8, "maxRange": 8, "runningWeight": 0.6}),
    ("token-load-scorer", 1, {"queueThresholdTokens": 65_536}),
    ("decode-load-scorer", 1, {}),
    ("kv-cache-utilization-scorer", 1, {}),
)
PREFIX = ("prefix-cache-scorer", 2, {"matchLengthWeight": 0.5, "matchLengthScaleTokens": 4096})
POLICIES: Mapping[str, Weights] = {
    "cost": (("cost-scorer", 1, {}),),
    "weighted": (PREFIX, *LOAD),
    "load only": LOAD,
    "reference": (
        ("queue-scorer", 2, {}),
        ("kv-cache-utilization-scorer", 2, {}),
        ("prefix-cache-scorer", 3, {}),
    ),
}
"""`weighted` was our default before `cost-scorer`; `reference` is the llm-d router's."""
SLOW = {**GPU, "prefill_tokens_per_s": 2000.0, "decode_step_s": 0.05}
EVEN, ONE_SLOW = (GPU,) * 4, (GPU, GPU, GPU, SLOW)


@dataclass(frozen=True, slots=True)
class Workload:
    asks: Callable[[Random], list[Ask]]
    engines: tuple[Mapping[str, Any], ...] = EVEN


WORKLOADS = {
    "hot prefix": Workload(lambda r: workloads.hot(r, 16, 400)),
    "hot prefix, 2x": Workload(lambda r: workloads.hot(r, 32, 600)),
    "shared prefixes": Workload(lambda r: workloads.shared(r, 12, 500)),
    "shared prefixes, 2x": Workload(lambda r: workloads.shared(r, 24, 700)),
    "chats": Workload(lambda r: workloads.chats(r, 3, 120)),
    "chats, 3x": Workload(lambda r: workloads.chats(r, 8, 250)),
    "documents": Workload(lambda r: workloads.documents(r, 8, 300)),
    "strangers": Workload(lambda r: workloads.strangers(r, 20, 500)),
    "strangers, one slow": Workload(lambda r: workloads.strangers(r, 10, 300), ONE_SLOW),
    "shared, one slow": Workload(lambda r: workloads.shared(r, 12, 500), ONE_SLOW),
    "burst of equals": Workload(lambda r: workloads.burst(r, 40, 1000, at=1.0, equal=True)),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    cached: float
    mean_s: float
    p90_s: float
    p99_s: float
    whole_s: float
    least: float
    most: float


def play(workload: Workload, weights: Weights, seed: int) -> Outcome:
    asks = workload.asks(Random(seed))
    run = Fleet([CoreSettings(**one) for one in workload.engines], weights, seed=seed)
    served = run.run(asks)
    first = sorted(one.ttft_s for one in served)
    shares = [share / len(served) for share in run.shares()]
    return Outcome(
        cached=_share_cached(served),
        mean_s=sum(first) / len(first),
        p90_s=first[int(len(first) * 0.9)],
        p99_s=first[int(len(first) * 0.99)],
        whole_s=sum(one.took_s for one in served) / len(served),
        least=min(shares),
        most=max(shares),
    )


def _share_cached(served: Sequence[Served]) -> float:
    return sum(one.cached for one in served) / sum(len(one.ask.tokens) for one in served)


def mean(outcomes: Sequence[Outcome], name: str) -> float:
    return sum(getattr(one, name) for one in outcomes) / len(outcomes)


def main(words: list[str]) -> None:
    seeds = range(int(os.environ.get("SEEDS", "3")))
    print(f"{'workload':<20} {'policy':<10} cached  first token ms: mean    p90    p99   answer s")
    for name, workload in WORKLOADS.items():
        if words and not any(word in name for word in words):
            continue
        for policy, weights in POLICIES.items():
            found = [play(workload, weights, seed) for seed in seeds]
            ms = [1e3 * mean(found, key) for key in ("mean_s", "p90_s", "p99_s")]
            print(
                f"{name:<20} {policy:<10} {mean(found, 'cached'):6.2f} {ms[0]:21.0f} {ms[1]:6.0f} "
                f"{ms[2]:6.0f} {mean(found, 'whole_s'):10.2f}   "
                f"{mean(found, 'least'):.2f}-{mean(found, 'most'):.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
