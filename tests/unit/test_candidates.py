"""Candidates as a sequence and as columns."""

import numpy as np
import pytest

from epp.framework import (
    COLUMNS,
    Candidates,
    Endpoint,
    EndpointId,
    Incarnation,
    Load,
    Match,
    PoolId,
    Source,
)


def _endpoint(number: int) -> Endpoint:
    ident = EndpointId(PoolId("pool"), f"pod-{number}", 8000)
    return Endpoint(
        id=ident,
        address=f"10.0.0.{number}:8000",
        incarnation=Incarnation(ident, 1),
        load=Load(waiting=number, kv_usage=None),
        match=Match(64 * number, Source.PREDICTED, 0.5),
    )


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
