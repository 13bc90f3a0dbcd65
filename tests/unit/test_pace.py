"""Estimates of speed and duration."""

from epp.state.pace import Durations, PrefillPace


def test_speed_is_a_moving_average_within_bounds() -> None:
    pace = PrefillPace(weight=0.5)
    assert pace.measured is None
    pace.observe(10, 1.0)
    pace.observe(1_000, 0.0)
    assert pace.measured is None
    pace.observe(1_000, 1.0)
    assert pace.measured == 1_000
    pace.observe(2_000, 1.0)
    assert pace.measured == 1_500
    for _ in range(100):
        pace.observe(10**9, 1e-9)
    assert pace.measured <= 1_000_000
    for _ in range(100):
        pace.observe(64, 1e9)
    assert pace.measured >= 50


def test_p99_needs_samples_and_follows_a_bounded_window() -> None:
    durations = Durations(window=100, min_samples=20)
    for _ in range(19):
        durations.add(5.0)
    assert durations.p99_s == 60.0
    durations.add(5.0)
    assert durations.p99_s == 5.0
    for _ in range(200):
        durations.add(7.0)
    assert durations.p99_s == 7.0
    assert len(durations) == 100
    durations.add(float("nan"))
    durations.add(-1.0)
    assert len(durations) == 100


def test_p99_stays_between_floor_and_cap() -> None:
    durations = Durations()
    for _ in range(30):
        durations.add(0.001)
    assert durations.p99_s == 1.0
    for _ in range(3_000):
        durations.add(1e6)
    assert durations.p99_s == 900.0
