"""CPU cost of block keys and of prefix lookups: `python tests/bench/index_lookup.py`.

Prints microseconds of CPU, best of several rounds, and bytes per entry. Not part of the test suite.
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
from epp.state.blocks import byte_keys, pack, seed_of, token_keys
from epp.state.engine_blocks import EngineBlocks
from epp.state.events import BlockStored
from epp.state.prefix import PredictedIndex, PrefixIndex

ENDPOINTS = 100
KEYS = 512
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


def _applied(event: BlockStored) -> None:
    EngineBlocks("m").apply([event])


def main() -> None:
    rng = random.Random(1)
    lives = tuple(
        Incarnation(EndpointId(PoolId("pool"), f"pod-{at}", 8000), 1) for at in range(ENDPOINTS)
    )
    prompt = [rng.randrange(128_000) for _ in range(KEYS * 64)]
    keys = token_keys(prompt, seed_of("m"))
    index, predicted = PrefixIndex(1_000_000), PredictedIndex(1_000_000, ttl_s=60)
    for at, inc in enumerate(lives):
        noise = tuple(rng.getrandbits(64) for _ in range(5000 - KEYS))
        index.store(inc, noise)
        index.store(inc, keys[: KEYS * (at + 1) // ENDPOINTS])
        predicted.insert(inc, keys[: KEYS * (at + 1) // ENDPOINTS], str(at), 0.0)

    eight = prompt[:8192]
    packed = pack(eight)
    seed = seed_of("m")
    rows: list[tuple[str, float]] = [
        ("seed_of", cpu_us(lambda: seed_of("meta-llama/Llama-3.1-8B-Instruct"))),
        ("token_keys, 8192 tokens as a list", cpu_us(lambda: token_keys(eight, seed))),
        ("token_keys, 8192 tokens packed", cpu_us(lambda: token_keys(packed, seed))),
        ("byte_keys, 32 KiB", cpu_us(lambda: byte_keys(packed, seed))),
        (
            f"lookup, {KEYS} keys x {ENDPOINTS} endpoints, same tuple",
            cpu_us(lambda: index.lookup(keys, lives)),
        ),
        (
            f"lookup, {KEYS} keys x {ENDPOINTS} endpoints, another list",
            cpu_us(lambda: index.lookup(keys, list(lives))),
        ),
        ("lookup of a cold prompt", cpu_us(lambda: index.lookup([1, *keys], lives))),
        (
            f"predicted lookup, {KEYS} keys x {ENDPOINTS} endpoints",
            cpu_us(lambda: predicted.lookup(keys, lives, 1.0)),
        ),
        (
            f"predicted insert, {KEYS} keys known already",
            cpu_us(lambda: predicted.insert(lives[-1], keys, "again", 1.0)),
        ),
    ]
    for name, cost in rows:
        print(f"{name:55} {cost:9.1f} us")

    many = [rng.getrandbits(64) for _ in range(100_000)]
    fresh = PrefixIndex(1_000_000)
    size = grown(lambda: fresh.store(lives[0], many))
    print(f"{'PrefixIndex, first holder of a key':55} {size / len(many):9.0f} bytes")
    size = grown(lambda: fresh.store(lives[1], many))
    print(f"{'PrefixIndex, second holder of a key':55} {size / len(many):9.0f} bytes")
    few = PredictedIndex(1_000_000, 60)
    size = grown(lambda: few.insert(lives[0], many, "r", 0.0))
    print(f"{'PredictedIndex, one block':55} {size / len(many):9.0f} bytes")
    for block in (16, 64):
        tokens = [rng.randrange(128_000) for _ in range(20_000 * block)]
        engine = EngineBlocks("m")
        hashes = tuple(rng.getrandbits(64) for _ in range(20_000))
        event = BlockStored(
            block_hashes=hashes, parent_block_hash=None, tokens=pack(tokens), block_size=block
        )
        size = grown(partial(engine.apply, [event]))
        print(f"{f'EngineBlocks, one block of {block} tokens':55} {size / 20_000:9.0f} bytes")
        cost = cpu_us(partial(_applied, event))
        print(f"{f'EngineBlocks, store of one block of {block} tokens':55} {cost / 20_000:9.2f} us")


if __name__ == "__main__":
    main()
