"""Estimates of speed and duration."""

from collections.abc import Sequence

import pytest

from epp.framework import Speeds
from epp.state.pace import ENOUGH, DecodePace, Durations, InUse, Paces, Steps, TokenPace


def test_the_speed_of_prefills_needs_samples_and_stays_within_bounds() -> None:
    pace = TokenPace()
    pace.observe(10, 1.0)
    pace.observe(1_000, 0.0)
    pace.observe(1_000, float("nan"))
    for _ in range(ENOUGH - 1):
        pace.observe(1_000, 1.0)
    assert pace.measured is None
    pace.observe(1_000, 1.0)
    assert pace.measured == 1_000
    for _ in range(100):
        pace.observe(10**9, 1e-9)
    assert pace.measured == 1_000_000
    for _ in range(100):
        pace.observe(64, 1e9)
    assert pace.measured == 50


def test_a_third_of_odd_samples_does_not_move_the_speed_of_prefills() -> None:
    pace = TokenPace()
    for number in range(60):
        pace.observe(4_000, 0.5 if number % 3 else 60.0)
    assert pace.measured == 8_000


def test_long_prompts_say_how_fast_prefills_are() -> None:
    pace = TokenPace()
    for _ in range(10):
        pace.observe(100, 0.05 + 100 / 8_000)
        pace.observe(8_000, 0.05 + 1.0)
    assert pace.measured is not None
    assert 7_500 < pace.measured < 8_000


def test_a_prefill_speed_that_changes_is_followed_within_a_window() -> None:
    pace = TokenPace(window=16)
    for _ in range(16):
        pace.observe(8_000, 1.0)
    for _ in range(9):
        pace.observe(2_000, 1.0)
        pace.observe(2_000, 1.0)
    assert pace.measured == 2_000


def answers(pace: DecodePace, loads: Sequence[float], odd: int = 0) -> None:
    """Answers of an engine with steps of 10 ms and 1 us a block; each `odd`th took far longer."""
    for number, blocks in enumerate(loads, 1):
        step = 0.010 + 1e-6 * blocks
        stalled = odd and number % odd == 0
        pace.observe(101, 100 * step * (20 if stalled else 1), blocks)


def test_the_steps_of_answers_are_a_line_over_the_blocks_in_use() -> None:
    pace = DecodePace(prior_block_s=2e-6)
    answers(pace, [1_000.0, 4_000.0] * 12)
    assert pace.measured is not None
    assert pace.measured.base_s == pytest.approx(0.010)
    assert pace.measured.block_s == pytest.approx(1e-6)


def test_a_few_stalled_answers_do_not_bend_that_line() -> None:
    pace = DecodePace(prior_block_s=2e-6)
    answers(pace, [500.0, 2_000.0, 4_000.0, 6_000.0, 8_000.0] * 8, odd=6)
    assert pace.measured is not None
    assert pace.measured.base_s == pytest.approx(0.010, rel=0.15)
    assert pace.measured.block_s == pytest.approx(1e-6, rel=0.5)


def test_a_load_that_never_varies_says_nothing_of_the_price_of_a_block() -> None:
    pace = DecodePace(prior_block_s=2e-6)
    answers(pace, [1_000.0] * 20)
    assert pace.measured == Steps(pytest.approx(0.009), None)


def test_steps_need_samples_that_say_something() -> None:
    pace = DecodePace(prior_block_s=2e-6)
    for tokens, seconds, blocks in (
        (4, 0.1, 0.0),
        (100, 0.0, 0.0),
        (100, float("nan"), 0.0),
        (100, 1.0, float("nan")),
        (100, 1.0, -1.0),
        (100, 1e9, 0.0),
        (100, 1e-9, 0.0),
    ):
        for _ in range(ENOUGH):
            pace.observe(tokens, seconds, blocks)
    assert pace.measured is None
    answers(pace, [0.0] * (ENOUGH - 1))
    assert pace.measured is None
    answers(pace, [0.0])
    assert pace.measured is not None


def test_blocks_in_use_are_averaged_over_an_answer_and_kept_for_a_while_only() -> None:
    in_use = InUse(window=10)
    assert in_use.mean_since(0.0) is None
    for second in range(100):
        in_use.add(100.0 * second, float(second))
        in_use.add(1e9, second + 0.1)  # too soon after that
    assert len(in_use) == 10
    assert in_use.mean_since(98.0) == pytest.approx(9_850.0)
    assert in_use.mean_since(1_000.0) == 9_900.0
    assert in_use.mean_since(0.0) == pytest.approx(9_450.0)


def test_what_was_not_observed_is_as_usual() -> None:
    paces, usual = Paces(), Speeds()
    assert paces.speeds(123.0) == (123.0, usual.decode_s_per_token, usual.decode_s_per_block)
    answers(paces.decoding, [1_000.0] * ENOUGH)
    _, step_s, block_s = paces.speeds(123.0)
    assert step_s == pytest.approx(0.009)
    assert block_s == usual.decode_s_per_block


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


@pytest.mark.parametrize("before", [2, 11, 31])
def test_one_long_prompt_that_waited_does_not_move_the_speed_of_prefills(before: int) -> None:
    pace = TokenPace()
    for number in range(before):
        pace.observe(200, 200 / (8000.0 + number))
    pace.observe(8000, 8000 / 60.0)
    assert pace.measured == pytest.approx(8000.0, rel=0.01)
