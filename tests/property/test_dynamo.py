"""Our block hashes and our index, against the ones of Dynamo's router (a wheel of 75 MB).

`make test-long` installs it (the group `differential`); without it these tests fail.
"""

import importlib
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.blocks import local_hash, pack, seed_of, token_keys
from epp.state.engine_blocks import EngineBlocks
from epp.state.prefix import PrefixIndex
from tests.fakes.kv_publisher import CLEARED, removed, stored

pytestmark = pytest.mark.long

SEED = 1337
"""The seed that Dynamo fixes."""
SIZE = 16


@cache
def dynamo() -> Any:
    """Only tests that run need it, and only they fail without it."""
    return importlib.import_module("dynamo.llm")


@settings(max_examples=500)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=300), st.sampled_from([4, 16, 64]))
def test_local_hashes_are_dynamos(tokens: list[int], size: int) -> None:
    blocks = [tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size)]
    ours = [local_hash(pack(block), SEED) for block in blocks]
    assert ours == dynamo().compute_block_hash_for_seq(tokens, size)
    assert len(token_keys(tokens, SEED, size)) == len(ours)


PATHS = [(0,), (0, 0), (0, 0, 0), (0, 0, 1), (0, 1), (0, 1, 0, 0), (1,), (1, 0), (1, 0, 1)]
Path = tuple[int, ...]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(1, 3), st.sampled_from(PATHS)),
        st.tuples(st.just("evict"), st.integers(1, 3), st.sampled_from(PATHS)),
        st.tuples(st.just("clear"), st.integers(1, 3), st.just(())),
    ),
    max_size=30,
)


def tokens_of(path: Path) -> list[int]:
    return [depth * 10 + choice for depth, choice in enumerate(path) for _ in range(SIZE)]


class Both:
    """One engine's events told to Dynamo's tree and to our mirror and index."""

    def __init__(self) -> None:
        self.tree = dynamo().RadixTree()
        self.index = PrefixIndex(10_000)
        self.engines = {worker: EngineBlocks("m", SIZE) for worker in (1, 2, 3)}
        self.held: dict[int, set[Path]] = {worker: set() for worker in self.engines}

    def store(self, worker: int, path: Path) -> None:
        held = self.held[worker]
        missing = [path[:end] for end in range(1, len(path) + 1) if path[:end] not in held]
        if not missing:
            return
        held.update(missing)
        start = len(missing[0]) - 1
        parent = name(path[:start]) if start else None
        told = tokens_of(path)
        self._ours(
            worker, stored([name(one) for one in missing], told[start * SIZE :], SIZE, parent)
        )
        local = dynamo().compute_block_hash_for_seq(told, SIZE)
        blocks = [{"block_hash": name(one), "tokens_hash": local[len(one) - 1]} for one in missing]
        self._theirs(worker, {"stored": {"parent_hash": parent, "blocks": blocks}})

    def evict(self, worker: int, path: Path) -> None:
        """From the end, as engines do."""
        held = self.held[worker]
        gone = sorted((one for one in held if one[: len(path)] == path), key=len, reverse=True)
        held.difference_update(gone)
        for one in gone:
            self._ours(worker, removed(name(one)))
            self._theirs(worker, {"removed": {"block_hashes": [name(one)]}})

    def clear(self, worker: int) -> None:
        self.held[worker].clear()
        self._ours(worker, CLEARED)
        self._theirs(worker, "cleared")

    def found(self, path: Path) -> tuple[dict[int, int], dict[int, int]]:
        """Leading blocks by worker, as we say and as Dynamo says."""
        told = tokens_of(path)
        local = dynamo().compute_block_hash_for_seq(told, SIZE)
        scores = dynamo().RadixTree.find_matches(self.tree, local).scores
        theirs = {worker: depth for (worker, _), depth in scores.items() if depth}
        seed = seed_of("m")
        keys = token_keys(told, seed, SIZE)
        lives = {life(worker): worker for worker in self.engines}
        found = self.index.lookup(keys, list(lives))
        return {lives[inc]: depth for inc, depth in found.items() if depth}, theirs

    def _ours(self, worker: int, event: Any) -> None:
        delta = self.engines[worker].apply([event])
        if delta.reset:
            self.index.clear(life(worker))
        self.index.store(life(worker), delta.stored)
        self.index.remove(life(worker), delta.removed)

    def _theirs(self, worker: int, data: Any) -> None:
        told = json.dumps({"event_id": 0, "data": data, "dp_rank": 0}).encode()
        self.tree.apply_event(worker, told)


def name(path: Path) -> int:
    return int("1" + "".join(map(str, path)))


def life(worker: int) -> Incarnation:
    return Incarnation(EndpointId(PoolId("p"), str(worker), 8000), 1)


@settings(max_examples=500)
@given(steps)
def test_the_index_finds_what_dynamos_tree_finds(told: list[tuple[str, int, Path]]) -> None:
    both = Both()
    for what, worker, path in told:
        match what:
            case "store":
                both.store(worker, path)
            case "evict":
                both.evict(worker, path)
            case _:
                both.clear(worker)
        for one in PATHS:
            ours, theirs = both.found(one)
            assert ours == theirs
