"""Faults of the simulated engine: what hits whom."""

import random

import msgspec
import pytest

from epp.sim.serving.faults import NO_FAULTS, FaultBox, Faults


def box(**faults: object) -> FaultBox:
    box = FaultBox(random.Random(7))
    box.set(msgspec.convert(faults, Faults))
    return box


def test_nothing_goes_wrong_by_default() -> None:
    fresh = FaultBox(random.Random(7))
    assert fresh.active == NO_FAULTS
    assert fresh.status() is None
    assert not fresh.drops_batch()


def test_a_status_hits_every_request_or_so_many() -> None:
    assert [box(status=503).status() for _ in range(5)] == [503] * 5
    counted = box(status=429, status_count=2)
    assert [counted.status() for _ in range(4)] == [429, 429, None, None]


def test_a_share_of_requests_is_hit() -> None:
    some = box(status=500, status_share=0.25)
    assert 200 <= sum(some.status() is not None for _ in range(1000)) <= 300
    assert box(status=500, status_share=0.0).status() is None


def test_setting_faults_replaces_the_whole_set() -> None:
    set_twice = box(status=500, drop_event_batches=3)
    set_twice.set(Faults(drop_event_batches=1))
    assert set_twice.status() is None
    assert [set_twice.drops_batch() for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    "faults",
    [
        {"latency_s": -1},
        {"latency_s": 601},
        {"status": 200},
        {"status": 600},
        {"status_share": 1.1},
        {"status_count": -1},
        {"health_status": 99},
        {"hang": "yes"},
        {"hang_after_chunks": -1},
        {"no_such_fault": 1},
    ],
)
def test_faults_that_make_no_sense_are_refused(faults: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        box(**faults)
