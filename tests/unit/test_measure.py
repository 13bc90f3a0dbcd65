"""Quantiles, intervals and CPU readings."""

import math
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.sim.benches.measure import Spread, cpu_s, intervals, quantile


def test_quantiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [quantile(values, share) for share in (0, 0.5, 0.9, 0.99, 1)] == [1, 50, 90, 99, 100]
    assert quantile([7.0], 0.99) == 7.0
    assert math.isnan(quantile([], 0.5))


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_at_least_the_share_of_values_is_not_above_the_quantile(
    values: list[float], share: float
) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6


def test_a_spread_is_in_milliseconds() -> None:
    assert Spread.of([0.001, 0.002, 0.003]) == Spread(3, 2.0, 3.0, 3.0)


def test_intervals_lie_between_arrivals() -> None:
    assert intervals([1.0, 1.5, 3.0]) == [0.5, 1.5]
    assert intervals([1.0]) == intervals([]) == []


def test_the_cpu_of_this_very_process_grows_as_it_works() -> None:
    before, own = cpu_s(os.getpid()), time.process_time()
    while time.process_time() - own < 0.05:
        pass
    assert cpu_s(os.getpid()) - before == pytest.approx(0.05, abs=0.03)


def test_a_name_with_brackets_does_not_confuse_the_reading(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = ["S", *["0"] * 10, "300", "200", *["0"] * 30]
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) {' '.join(fields)}")
    assert cpu_s(7, tmp_path) == 500 / os.sysconf("SC_CLK_TCK")


def test_a_process_that_is_gone_has_used_nothing(tmp_path: Path) -> None:
    assert cpu_s(8, tmp_path) == 0.0
