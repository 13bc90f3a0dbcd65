"""Candidates as a sequence and as columns."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from epp.framework import (
    COLUMNS,
    Candidates,
    Endpoint,
    Load,
    Match,
    Role,
    Source,
    Speeds,
)
from tests.fakes.endpoints import endpoint


def _endpoint(number: int) -> Endpoint:
    load, match = Load(waiting=number, kv_usage=None), Match(64 * number, Source.PREDICTED, 0.5)
    return endpoint(number, load=load, match=match)


POOL = [_endpoint(number) for number in range(5)]


def test_every_column_follows_from_the_endpoints() -> None:
    found = Candidates.of(POOL)
    assert found.column("waiting").tolist() == [0, 1, 2, 3, 4]
    assert np.isnan(found.column("kv_usage")).all()
    assert found.column("matched_tokens").tolist() == [0, 64, 128, 192, 256]
    assert found.column("credited_tokens").tolist() == [0, 32, 64, 96, 128]
    for name in COLUMNS:
        assert len(found.column(name)) == len(POOL)


def test_a_column_that_was_given_is_not_made_again() -> None:
    built: list[int] = []

    def at(row: int) -> Endpoint:
        built.append(row)
        return POOL[row]

    found = Candidates(5, at, {"waiting": np.arange(5.0)})
    assert found.column("waiting").sum() == 10
    assert built == []
    assert found[2] is found[2]
    assert built == [2]


def test_a_part_keeps_values_and_columns_in_step() -> None:
    whole = Candidates.of(POOL)
    whole.column("waiting")
    part = whole.take([4, 1])
    assert [one.address for one in part] == [POOL[4].address, POOL[1].address]
    assert part.column("waiting").tolist() == [4, 1]
    assert part.column("matched_tokens").tolist() == [256, 64]
    assert whole.keep([True] * 5) is whole
    assert [one.id.name for one in whole.keep([False, True, False, False, True])] == [
        "pod-1",
        "pod-4",
    ]
    assert list(whole[1:3]) == POOL[1:3]
    assert whole[-1] is POOL[4]


def test_columns_are_read_only_and_known_by_name() -> None:
    found = Candidates.of(POOL)
    with pytest.raises(ValueError, match="read-only"):
        found.column("waiting")[0] = 7
    with pytest.raises(KeyError):
        found.column("no such")
    with pytest.raises(IndexError):
        found[5]
    assert Candidates.of(found) is found


def test_names_and_labels_are_read_without_building_endpoints() -> None:
    built: list[int] = []

    def at(row: int) -> Endpoint:
        built.append(row)
        return POOL[row]

    ids, labels = [one.id for one in POOL], [{"n": str(number)} for number in range(5)]
    part = Candidates(5, at, {"waiting": np.arange(5.0)}, ids=ids, labels=labels).take([3, 1])
    assert list(part.ids) == [POOL[3].id, POOL[1].id]
    assert [each["n"] for each in part.labels] == ["3", "1"]
    assert part.column("waiting").tolist() == [3, 1]
    assert built == []
    assert list(part.take([1]).ids) == [POOL[1].id]
    made = Candidates.of(POOL).take([2])
    assert (list(made.ids), list(made.labels)) == ([POOL[2].id], [{}])


def _loads(*loads: Load) -> Candidates:
    return Candidates.of([replace(POOL[0], load=load) for load in loads])


def test_the_larger_of_the_engines_count_and_ours_stands_and_unknown_stays_unknown() -> None:
    mixed = _loads(
        Load(waiting=3, reserved_pending=5, reserved_requests=9, running=2),
        Load(waiting=3, reserved_pending=1, reserved_requests=2, running=7),
        Load(reserved_pending=8, reserved_requests=8),
    )
    assert mixed.queues().tolist()[:2] == [5, 3]
    assert mixed.answering().tolist()[:2] == [4, 7]
    assert np.isnan(mixed.queues()[2])
    assert np.isnan(mixed.answering()[2])


def test_where_no_engine_says_anything_our_own_counts_stand_alone() -> None:
    ours = _loads(Load(reserved_pending=4, reserved_requests=6), Load(), Load(reserved_pending=1))
    assert ours.queues().tolist() == [4, 0, 1]
    assert ours.answering().tolist() == [2, 0, 0]
    assert len(Candidates.of([]).queues()) == len(Candidates.of([]).answering()) == 0


def test_what_was_left_out_is_told_step_by_step() -> None:
    whole = Candidates.of(POOL)
    ready = whole.take([0, 1, 2, 3], "not ready")
    allowed = ready.keep([False, True, True, True], "subset")
    left = allowed.keep([True, True, True], "nobody").keep([False, False, True], "filter")
    assert left.excluded(1) == [
        ("not ready", 1, ("10.0.0.4:8000",)),
        ("subset", 1, ("10.0.0.0:8000",)),
        ("filter", 2, ("10.0.0.1:8000",)),
    ]
    assert left.excluded(9, since=allowed) == [("filter", 2, ("10.0.0.1:8000", "10.0.0.2:8000"))]
    assert whole.excluded(9) == left.excluded(9, since=left) == []


def test_parts_without_a_reason_are_not_told() -> None:
    part = Candidates.of(POOL).take([4, 2]).keep([True, False], "late")
    assert part.excluded(9) == [("late", 1, ("10.0.0.2:8000",))]


def test_each_column_reads_the_field_of_its_name() -> None:
    one = replace(
        POOL[0],
        role=Role.ENCODE_PREFILL,
        load=Load(
            waiting=1,
            running=2,
            kv_usage=0.3,
            active_blocks=4.0,
            total_blocks=5,
            block_tokens=6,
            reserved_requests=7,
            reserved_pending=8,
            reserved_prefill_tokens=9,
            reserved_decode_blocks=10,
        ),
        speeds=Speeds(
            prefill_tokens_per_s=11.0,
            decode_s_per_token=12.0,
            decode_s_per_block=13.0,
            pull_tokens_per_s=14.0,
        ),
        match=Match(64, Source.PRECISE, 0.5),
    )
    assert {name: float(Candidates.of([one]).column(name)[0]) for name in COLUMNS} == {
        "waiting": 1,
        "running": 2,
        "kv_usage": 0.3,
        "active_blocks": 4,
        "total_blocks": 5,
        "block_tokens": 6,
        "reserved_requests": 7,
        "reserved_pending": 8,
        "reserved_prefill_tokens": 9,
        "reserved_decode_blocks": 10,
        "prefill_tokens_per_s": 11,
        "decode_s_per_token": 12,
        "decode_s_per_block": 13,
        "pull_tokens_per_s": 14,
        "matched_tokens": 64,
        "credited_tokens": 32,
        "precise": 1,
        "serves_decode": 0,
        "serves_prefill": 1,
        "serves_encode": 1,
    }


def test_a_sidecar_loads_no_columns() -> None:
    """They would cost it 20 MB of memory."""
    done = subprocess.run(
        [sys.executable, "-c", "import sidecar.app, sys; sys.exit('numpy' in sys.modules)"],
        check=False,
    )
    assert done.returncode == 0
