"""Field faults of the index with slower tiers, by their number.

Each docstring names what protects; every one of these was seen red with that disabled.
"""

import pytest

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.prefix import GPU, PrefixIndex

PROMPT = range(1, 17)


def life(name: str, start_ms: int = 1) -> Incarnation:
    return Incarnation(EndpointId(PoolId("p"), name, 8000), start_ms)


A, B, C = life("a"), life("b"), life("c")


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex(1000)


def test_C01_a_cleared_engine_has_nothing_on_its_own_tiers_either(index: PrefixIndex) -> None:
    """`PrefixIndex.clear` clears all tiers."""
    for tier in (GPU, "CPU", "DISK"):
        index.store(A, PROMPT, tier)
    index.clear(A)
    assert index.lookup(PROMPT, [A]) == {}
    assert [index.blocks(A, tier) for tier in (GPU, "CPU", "DISK")] == [0, 0, 0]


def test_C02_a_retired_slot_is_swept_in_slices_before_somebody_else_gets_it() -> None:
    """`Holders` keeps a cleared slot apart until it is swept; red when it is free at once."""
    index = PrefixIndex(1000)
    index.store(A, range(300))
    index.clear(A)
    index.store(B, [0])  # this sweeps a little, not all
    assert 0 < index.retired_blocks <= 300
    assert index.slots == 2
    while index.retired_blocks:
        index.store(C, [5])
        assert index.slots == 3
        assert index.lookup([0], [A, B, C]) == {B: 1}
        index.sweep(20)
    index.sweep(1000)
    assert (len(index), index.slots) == (2, 2)


def test_C03_late_blocks_of_a_removed_pod_reach_no_tier(index: PrefixIndex) -> None:
    """`PrefixIndex.store` refuses what `forget` has named, on every tier."""
    index.store(B, PROMPT, "SHARED")
    index.forget(A)
    for tier in (GPU, "CPU", "SHARED"):
        index.store(A, range(100, 200), tier)
        index.remove(A, PROMPT, tier)
    assert index.late == 300
    assert index.blocks(B, "SHARED") == len(PROMPT)


def test_C18_a_block_counts_where_it_is_until_it_is_nowhere(index: PrefixIndex) -> None:
    """`PrefixIndex.store` and `remove` keep each tier by itself."""
    told = []
    for change, tier in (("store", GPU), ("store", "CPU"), ("remove", GPU), ("remove", "CPU")):
        getattr(index, change)(A, PROMPT, tier)
        found = index.tier_depths(PROMPT, (A,))
        told.append((int(found.gpu[0]), {of: int(n[0]) for of, n in found.loaded.items()}))
    assert told == [(16, {}), (16, {}), (0, {"CPU": 16}), (0, {})]


def test_C18_the_gpu_is_of_no_use_behind_what_must_be_loaded(index: PrefixIndex) -> None:
    """`PrefixIndex._loaded` asks the slower tiers only, from where the GPU ends."""
    index.store(A, [1, 2, 4, 5, 6])
    index.store(A, [3, 7], "CPU")
    found = index.tier_depths(PROMPT, (A,))
    assert (found.gpu.tolist(), found.whole.tolist()) == ([2], [3])


def test_C18_of_two_tiers_the_faster_one_is_used(index: PrefixIndex) -> None:
    """`PrefixIndex._open` keeps tiers in the order of their pace."""
    index.store(A, PROMPT, "DISK")
    index.store(A, PROMPT[:5], "CPU")
    found = index.tier_depths(PROMPT, (A,))
    assert {of: int(n[0]) for of, n in found.loaded.items()} == {"CPU": 5, "DISK": 11}


def test_C18_what_is_shared_outlives_its_writer_and_serves_everybody(index: PrefixIndex) -> None:
    """`PrefixIndex.tell` gives shared tiers one holder of their own."""
    index.store(A, PROMPT, "SHARED")
    index.forget(A)
    assert index.blocks(B, "SHARED") == len(PROMPT)
    assert index.lookup(PROMPT, [B]) == {B: len(PROMPT)}
    index.remove(B, PROMPT, "SHARED")
    assert index.lookup(PROMPT, [A, B]) == {}


def test_C18_a_tier_gives_back_whole_chunks_only(index: PrefixIndex) -> None:
    """`index._whole` leaves out blocks whose chunk of 256 tokens is not held altogether."""
    index.store(A, PROMPT[:2])
    index.store(A, PROMPT[:7], "SHARED")
    assert index.lookup(PROMPT, [A, B]) == {A: 4, B: 4}
    index.remove(A, PROMPT[:1], "SHARED")  # that chunk is spoilt, though A has its first blocks
    assert index.lookup(PROMPT, [A, B]) == {A: 2}


def test_C18_tiers_without_end_are_refused_and_counted(index: PrefixIndex) -> None:
    """`PrefixIndex._open` has room for `MAX_TIERS`."""
    for at in range(100):
        index.store(A, PROMPT, f"TIER{at}")
    assert (len(index.tiers), index.refused_tiers) == (8, 92 * len(PROMPT))


def test_C23_ten_thousand_lives_of_pods_leave_nothing_behind() -> None:
    """`Holders.tell` sweeps as it goes, and `KeyTable.thinned` gives the rest back."""
    index = PrefixIndex(1000)
    for at in range(10_000):
        index.store(life("pod", at), range(at * 50, at * 50 + 50), ("CPU", GPU)[at % 2])
        index.clear(life("pod", at))
        assert len(index) <= 4_000
    while index.retired_blocks:
        index.sweep(100_000)
    index.sweep(100_000)
    assert (len(index), index.slots) == (0, 0)
    assert index.nbytes < 20_000
