"""The index at its limits: what goes, and in which order."""

from random import Random

import numpy as np
import pytest

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.prefix import PrefixIndex
from epp.state.prefix.clearing import EPOCHS, Clearing, Stamps
from epp.state.prefix.index import CLEARED, CROWDED, EPOCH_S, SHARED_EPOCHS

A, B = (Incarnation(EndpointId(PoolId("p"), name, 8000), 1) for name in "ab")
MOST = 4000
PROMPT = 32


def index_of(most: int = MOST) -> PrefixIndex:
    return PrefixIndex(1_000_000, max_keys=most)


def prompt(chance: Random, size: int = PROMPT) -> tuple[int, ...]:
    return tuple(chance.getrandbits(64) for _ in range(size))


def test_there_are_never_more_keys_than_allowed_and_old_ones_make_room() -> None:
    chance, index = Random(1), index_of()
    prompts = [prompt(chance) for _ in range(500)]
    for number, keys in enumerate(prompts):
        index.age(EPOCH_S * (number // 50), budget=0)
        index.store(A, keys)
        assert len(index) <= MOST
    assert index.refused == 0
    assert index.evicted + len(index) == 500 * PROMPT
    assert index.blocks(A) == len(index)
    assert index.lookup(prompts[-1], [A]) == {A: PROMPT}
    assert index.lookup(prompts[0], [A]) == {}


def test_what_is_asked_for_stays() -> None:
    chance, index = Random(2), index_of()
    hot = prompt(chance)
    index.store(A, hot)
    for number in range(500):
        index.age(EPOCH_S * (number // 20), budget=0)
        assert index.lookup(hot, [A, B]) == {A: PROMPT}
        index.store(B, prompt(chance))


def test_a_prompts_tail_goes_before_its_head() -> None:
    chance, index = Random(3), index_of()
    known = [prompt(chance, 64) for _ in range(54)]
    for keys in known:
        index.store(A, keys)
        assert index.lookup(keys, [A]) == {A: 64}
    assert len(index) < CROWDED * MOST
    index.store(A, prompt(chance, 64))
    for _ in range(20):
        index.age(0.0, budget=MOST)
    held = sum(index.blocks(inc) for inc in (A,))
    left = [index.lookup(keys, [A]).get(A, 0) for keys in known]
    assert held == CLEARED * MOST
    assert min(left) >= 40
    assert sum(left) >= 0.95 * held, "what stays is of use"


def test_room_is_kept_for_what_comes_first_when_nothing_may_go_in_time() -> None:
    index = index_of(100)
    keys = prompt(Random(4), 150)
    index.store(A, keys)
    assert index.lookup(keys, [A]) == {A: 100}
    assert (len(index), index.refused) == (100, 50)


def test_a_key_that_goes_is_taken_from_all_of_its_holders() -> None:
    chance, index = Random(5), index_of(1000)
    many = [Incarnation(EndpointId(PoolId("p"), f"e{n}", 1), 1) for n in range(100)]
    shared = prompt(chance, 100)
    for inc in many:
        index.store(inc, shared)
    index.age(0.0, budget=0)
    index.age(EPOCH_S, budget=0)
    for _ in range(9):
        index.store(A, prompt(chance, 100))
        index.age(EPOCH_S, budget=10_000)
        index.age(EPOCH_S, budget=10_000)
    assert [index.blocks(inc) for inc in many] == [0] * 100
    assert index.blocks(A) == len(index) <= 1000


def test_blocks_of_a_shared_tier_that_nobody_speaks_of_are_let_go() -> None:
    index = index_of()
    index.age(1000.0, budget=MOST)
    silent, told, asked = (prompt(Random(number)) for number in (6, 7, 8))
    for keys in (silent, told, asked):
        index.store(A, keys, "SHARED")
    index.store(A, silent, "DISK")
    for epoch in range(1, SHARED_EPOCHS + 2):
        index.age(1000.0 + epoch * EPOCH_S, budget=MOST)
        index.store(B, told, "SHARED")
        index.lookup(asked, [B])
    index.age(1000.0 + (SHARED_EPOCHS + 1) * EPOCH_S, budget=MOST)
    assert index.blocks(A, "SHARED") == 2 * PROMPT
    assert index.blocks(A, "DISK") == PROMPT, "an engine says what it drops"
    assert index.evicted == PROMPT


@pytest.mark.parametrize("epoch", [0, 7, EPOCHS - 1, EPOCHS, 3 * EPOCHS + 1])
def test_ages_are_whole_epochs_and_the_tail_ranks_below_the_head(epoch: int) -> None:
    before, now = Stamps(epoch), Stamps(epoch + 3)
    assert now.ages(before.asked(200)).tolist() == [3] * 200
    assert now.ages(now.asked(3)).tolist() == [0] * 3
    asked = now.ranks(now.asked(5000)).tolist()
    assert asked == sorted(asked, reverse=True)
    assert now.ranks(np.array([now.told]))[0] < asked[-1]
    assert now.ranks(before.asked(1))[0] < now.ranks(np.array([now.told]))[0]
    again = now.told_again(np.array([before.told, now.asked(1)[0]]))
    assert again.tolist() == [now.told, now.asked(1)[0]]


def test_a_clearing_names_no_more_than_it_was_asked_for() -> None:
    clearing = Clearing(5)
    ranks = np.array([3, 1, 2, 2, 2, 2, 9], np.uint16)
    assert not clearing.look(ranks, 7, 7).any()
    assert clearing.look(ranks, 7, 7).tolist() == [False, True, True, True, True, True, False]
    assert clearing.over
    few = Clearing(3)
    few.look(ranks, 7, 7)
    assert few.look(ranks, 7, 7).tolist() == [False, True, True, True, False, False, False]
