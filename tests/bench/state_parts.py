"""What predictions and a sidecar's mirror of its engine cost: `python tests/bench/state_parts.py`.

Prints microseconds of CPU, best of several rounds, and bytes per entry. Not part of the test suite;
`epp bench index` measures the picker's index of the engines' blocks.
"""

import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.blocks import pack
from epp.state.engine_blocks import EngineBlocks
from epp.state.events import BlockStored
from epp.state.prefix import PredictedIndex

ENDPOINTS = 100
KEYS = 128
ROUNDS = 30


def cpu_us(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        call()
        best = min(best, time.process_time_ns() - started)
    return best / 1000


def grown(call: Callable[[], object]) -> int:
    tracemalloc.start()
    made = call()  # held while we measure
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del made
    return size


def predictions(rng: random.Random) -> None:
    lives = tuple(
        Incarnation(EndpointId(PoolId("pool"), f"pod-{at}", 8000), 1) for at in range(ENDPOINTS)
    )
    keys = tuple(rng.getrandbits(64) for _ in range(KEYS))
    predicted = PredictedIndex(1_000_000, ttl_s=60)
    for at, inc in enumerate(lives):
        predicted.insert(inc, keys[: KEYS * (at + 1) // ENDPOINTS], str(at), 0.0)
    cost = cpu_us(lambda: predicted.depths(keys, lives, 1.0))
    print(f"{f'lookup of {KEYS} keys on {ENDPOINTS} endpoints':45} {cost:9.1f} us")
    cost = cpu_us(lambda: predicted.insert(lives[-1], keys, "again", 1.0))
    print(f"{f'insert of {KEYS} keys that are known':45} {cost:9.1f} us")
    many = [rng.getrandbits(64) for _ in range(100_000)]
    few = PredictedIndex(1_000_000, 60)
    size = grown(lambda: few.insert(lives[0], many, "r", 0.0))
    print(f"{'one predicted block':45} {size / len(many):9.0f} bytes")


def mirror(rng: random.Random, block: int) -> None:
    event = BlockStored(
        block_hashes=tuple(rng.getrandbits(64) for _ in range(20_000)),
        parent_block_hash=None,
        tokens=pack([rng.randrange(128_000) for _ in range(20_000 * block)]),
        block_size=block,
    )
    size = grown(partial(EngineBlocks("m").apply, [event]))
    print(f"{f'one engine block of {block} tokens':45} {size / 20_000:9.0f} bytes")
    cost = cpu_us(lambda: EngineBlocks("m").apply([event]))
    print(f"{f'store of one engine block of {block} tokens':45} {cost / 20_000:9.2f} us")


if __name__ == "__main__":
    predictions(random.Random(1))
    for tokens in (16, 64):
        mirror(random.Random(1), tokens)
