"""`epp bench index`: what the prefix index costs, by the number of endpoints.

CPU and memory of a process of its own for each size. The index is filled to a number of keys with
three holders each on average, in two ways: by prompts (stretches of 32 keys that the same endpoints
hold, most of them few, which is what engines make), or scattered (each key with three holders of
its own, which nothing makes, and which is the worst for memory). Then prompts are looked up.
"""

import ctypes
import gc
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from epp.framework import EndpointId, Incarnation, PoolId
from epp.sim.benches.measure import quantile
from epp.state.prefix import PrefixIndex, Told

Keys = NDArray[np.uint64]

STRETCH = 32
"""Keys of a prompt that the same endpoints hold."""
HOLDERS = 3
"""Of a key, on average."""
BATCH = 512
"""Keys that one record brings."""
SMALL = 150
"""Keys that come with a small record; as many go."""
TOGETHER = 16
"""Small records that are told at once."""
TOLD = 1024
"""Small records in all."""
FEW = 3
"""Endpoints that hold a prompt beyond what all share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Microseconds of CPU."""

    least: float
    median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of an index with so many endpoints, keys and pairs of both."""

    endpoints: int
    holders: str
    keys: int
    pairs: int
    rss_bytes: int
    """By which the process grew, without what its allocator can give back."""
    bytes_per_key: float
    """Without 4 bytes for each holder of a key after the first."""
    stored_per_s: float
    """Pairs in a second of CPU, in batches, while the index grows."""
    removed_per_s: float
    told_per_s: float
    """Pairs that come and go, by small records that are told together."""
    match_us: dict[str, Spread]
    """By the kind of prompt."""


def measure(endpoints: int, keys: int, prompt_keys: int, prompts: int, scattered: bool) -> Cost:
    """Fill an index and ask it. Call it in a process of its own."""
    chance = np.random.default_rng(endpoints)
    lives = tuple(
        Incarnation(EndpointId(PoolId("pool"), f"pod-{number}", 8000), 1)
        for number in range(endpoints)
    )
    batches = list(_batches(chance, endpoints, keys, scattered))
    index = PrefixIndex(max_blocks_per_endpoint=keys)
    gc.collect()
    before = _rss()
    started = time.process_time()
    for holder, batch in batches:
        index.store(lives[holder], batch)
    stored_s = time.process_time() - started
    rss = _rss() - before
    pairs = sum(index.blocks(life) for life in lives)
    filled = _Filled(index, lives, chance, prompt_keys)
    match_us = {kind: filled.matches(make, prompts) for kind, make in _KINDS.items()}
    started = time.process_time()
    removed = batches[: len(batches) // 10]
    for holder, batch in removed:
        index.remove(lives[holder], batch)
    removed_s = time.process_time() - started
    told_s = _told_s(index, lives, chance)
    return Cost(
        endpoints=endpoints,
        holders="scattered" if scattered else "by prompts",
        keys=keys,
        pairs=pairs,
        rss_bytes=rss,
        bytes_per_key=(rss - 4 * (pairs - keys)) / keys,
        stored_per_s=pairs / stored_s,
        removed_per_s=sum(len(batch) for _, batch in removed) / removed_s,
        told_per_s=2 * TOLD * SMALL / told_s,
        match_us=match_us,
    )


def bench(sizes: Sequence[int], *, keys: int, prompt_keys: int, prompts: int, as_json: bool) -> str:
    """The costs at these numbers of endpoints, as text or JSON."""
    context = multiprocessing.get_context("spawn")
    costs: list[Cost] = []
    for size in sizes:
        for scattered in (False, True):
            with ProcessPoolExecutor(1, mp_context=context) as process:
                asked = process.submit(measure, size, keys, prompt_keys, prompts, scattered)
                costs.append(asked.result())
    if as_json:
        return json.dumps([asdict(cost) for cost in costs])
    kinds = list(costs[0].match_us)
    lines = [
        f"{keys} keys; a match of {prompt_keys} keys in microseconds of CPU: least / median",
        f"{'endpoints':>9} {'holders':>11} {'pairs':>9} {'B/key':>6} {'stored/s':>9} "
        f"{'removed/s':>9} {'told/s':>9}" + "".join(f"{kind:>16}" for kind in kinds),
    ]
    for cost in costs:
        spreads = (f"{one.least:.0f} / {one.median:.0f}" for one in cost.match_us.values())
        lines.append(
            f"{cost.endpoints:>9} {cost.holders:>11} {cost.pairs:>9} {cost.bytes_per_key:>6.1f} "
            f"{cost.stored_per_s:>9.0f} {cost.removed_per_s:>9.0f} "
            f"{cost.told_per_s:>9.0f}" + "".join(f"{spread:>16}" for spread in spreads)
        )
    return "\n".join(lines)


def _batches(
    chance: np.random.Generator, endpoints: int, keys: int, scattered: bool
) -> Iterator[tuple[int, Keys]]:
    """What each record brings: whose it is, and its keys."""
    count = -(-keys // STRETCH)
    all_keys = chance.integers(1, 2**64 - 1, size=(count, STRETCH), dtype=np.uint64)
    if scattered:
        all_keys = all_keys.reshape(-1, 1)
    # A geometric number of holders: most have one, some have many.
    holders = HOLDERS if scattered else chance.geometric(1 / HOLDERS, size=len(all_keys))
    most = np.minimum(holders, endpoints)
    of = np.repeat(np.arange(len(all_keys)), most)
    whose = chance.integers(0, endpoints, size=len(of))
    order = np.argsort(whose, kind="stable")
    per_batch = max(1, BATCH // all_keys.shape[1])
    records: list[tuple[int, Keys]] = []
    for holder, rows in enumerate(np.split(of[order], np.cumsum(np.bincount(whose))[:-1])):
        records += [
            (holder, all_keys[np.unique(rows[at : at + per_batch])].ravel())
            for at in range(0, len(rows), per_batch)
        ]
    yield from (records[place] for place in chance.permutation(len(records)).tolist())


def _told_s(
    index: PrefixIndex, lives: tuple[Incarnation, ...], chance: np.random.Generator
) -> float:
    """CPU that `TOLD` small records take, of one endpoint after the other."""
    keys = chance.integers(1, 2**64 - 1, size=(2, TOLD, SMALL), dtype=np.uint64)
    whose = [lives[number % len(lives)] for number in range(TOLD)]
    for life, first in zip(whose, keys[0], strict=True):
        index.store(life, first)
    told = [Told(*each) for each in zip(whose, *keys, strict=True)]
    started = time.process_time()
    for at in range(0, TOLD, TOGETHER):
        index.tell(told[at : at + TOGETHER])
    return time.process_time() - started


@dataclass(frozen=True, slots=True)
class _Filled:
    """An index, and what to ask it."""

    index: PrefixIndex
    lives: tuple[Incarnation, ...]
    chance: np.random.Generator
    size: int
    """Keys of a prompt."""

    def matches(self, make: "_Maker", prompts: int) -> Spread:
        """What it costs to look up so many prompts of a kind, one after the other."""
        spent: list[float] = []
        for prompt in make(self, prompts):
            started = time.process_time_ns()
            self.index.depths(prompt, self.lives)
            spent.append((time.process_time_ns() - started) / 1000)
        return Spread(least=min(spent), median=quantile(spent, 0.5))

    def prompt(self) -> Keys:
        return self.chance.integers(1, 2**64 - 1, size=self.size, dtype=np.uint64)


_Maker = Callable[[_Filled, int], list[tuple[int, ...]]]


def _conversations(filled: _Filled, prompts: int) -> list[tuple[int, ...]]:
    """Everybody has the first quarter, which is the same of all; a few have more."""
    head = filled.prompt()[: filled.size // 4]
    for life in filled.lives:
        filled.index.store(life, head)
    made: list[tuple[int, ...]] = []
    for _ in range(prompts):
        prompt = np.concatenate((head, filled.prompt()[len(head) :]))
        for number in filled.chance.integers(0, len(filled.lives), size=FEW).tolist():
            end = int(filled.chance.integers(len(head), filled.size + 1))
            filled.index.store(filled.lives[number], prompt[len(head) : end])
        made.append(tuple(prompt.tolist()))
    return made


def _stairs(filled: _Filled, prompts: int) -> list[tuple[int, ...]]:
    """No two endpoints have equally much of a prompt, as far as that is possible."""
    prompt, count = filled.prompt(), len(filled.lives)
    for number, life in enumerate(filled.lives):
        filled.index.store(life, prompt[: filled.size * (number + 1) // count])
    return [tuple(prompt.tolist())] * prompts


def _cold(filled: _Filled, prompts: int) -> list[tuple[int, ...]]:
    """Nobody has any of it."""
    return [tuple(filled.prompt().tolist()) for _ in range(prompts)]


_KINDS: dict[str, _Maker] = {"conversation": _conversations, "stairs": _stairs, "cold": _cold}


def _rss() -> int:
    """What the process holds once the allocator has given back what it can: what it keeps for later
    hangs on all that came and went before, and is as much again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
