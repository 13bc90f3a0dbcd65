"""CPU time of every installed scorer: `python -m tests.bench.scorers [SCORER…]`.

Prints microseconds of CPU for pools whose numbers stand as columns already, as in the picker: the
median of repeated calls, once for a prompt that nobody holds and once for a warm one.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from epp.framework import COLUMNS, Candidates, Request, samples
from epp.framework.registry import Kind
from tests.contract.installed import build, installed

POOLS = (10, 100, 1000)
CALLS, ROUNDS = 50, 21


def pool(size: int, *, warm: bool) -> Callable[[], Candidates]:
    """Makes the candidates anew: nothing that one call has built is there for the next."""
    draws = Random(size)
    made = [samples.endpoint(draws, number) for number in range(size)]
    whole = Candidates.of(made)
    columns = {name: np.array(whole.column(name)) for name in COLUMNS}
    if not warm:
        for name in ("matched_tokens", "credited_tokens"):
            columns[name] = np.zeros(size)
    ids, labels = [one.id for one in made], [one.labels for one in made]
    loras = [one.load.lora for one in made]
    return lambda: Candidates(
        size, made.__getitem__, dict(columns), ids=ids, labels=labels, loras=loras
    )


def microseconds(scorer: Any, asked: Request, make: Callable[[], Candidates]) -> float:
    """CPU time of one call."""
    rounds = []
    for _ in range(ROUNDS):
        candidates = [make() for _ in range(CALLS)]
        begin = time.process_time_ns()
        for each in candidates:
            scorer.score(asked, each)
        rounds.append((time.process_time_ns() - begin) / CALLS / 1000)
    return statistics.median(rounds)


def main(wanted: list[str]) -> None:
    asked = replace(
        samples.request(Random(1)),
        prompt_tokens=8192,
        keys=tuple(range(128)),
        headers={"x-session-id": "one", "x-preferred-zone": "a"},
        peer=samples.endpoint(Random(2), 0),
        media=((1, 1), (2, 1)),
        media_held={samples.endpoint(Random(3), number).id: 1 for number in range(5)},
    )
    pools = [(size, warm, pool(size, warm=warm)) for size in POOLS for warm in (False, True)]
    heads = " ".join(f"{size:>6}{'w' if warm else 'c'}" for size, warm, _ in pools)
    print(f"{'µs, c: cold, w: warm prompt':<32}{heads}")
    for kind in installed(Kind.SCORER):
        if wanted and kind.name not in wanted:
            continue
        scorer = build(kind)
        spent = [microseconds(scorer, asked, make) for _, _, make in pools]
        print(f"{kind.name:<32}" + " ".join(f"{each:>7.1f}" for each in spent))


if __name__ == "__main__":
    main(sys.argv[1:])
