"""How fast engines load from slower tiers: what answers teach, and whose word counts."""

from dataclasses import replace
from typing import Any

import pytest

from epp.framework import Endpoint, EndpointId, Incarnation, Load, Match, PoolId, Source
from epp.state.loading import KEPT_S, LEAST_TOKENS, LEVER, Loaded, Loading, shown_by
from epp.state.prefix.tiers import MAX_TIERS
from epp.state.records import Done, Outcome
from tests.fakes.endpoints import endpoint

PREFILL = 5_000.0
CPU, DISK = 200_000.0, 20_000.0
"""What is usual."""
A, B = (Incarnation(EndpointId(PoolId("pool"), name, 8000), 1) for name in "ab")
LIVES = (A, B)


def teach(
    loading: Loading, inc: Incarnation = A, *, times: int = 3, now: float = 0.0, **seen: Any
) -> None:
    """8,000 tokens come from the CPU within a second, and 100 are computed in 20 ms."""
    usual = Loaded(tier="CPU", tokens=8_000, computed=100, ttft_s=1.02)
    for _ in range(times):
        loading.observe(inc, replace(usual, **seen), PREFILL, now)


def test_a_life_that_has_shown_its_speed_goes_by_it_and_others_by_the_pools() -> None:
    loading = Loading({})
    assert loading.speeds("CPU", LIVES, 0.0).tolist() == [CPU, CPU]
    teach(loading, A, times=2)
    assert loading.speeds("CPU", LIVES, 0.0).tolist() == [CPU, CPU]
    teach(loading, A, times=1)
    assert loading.speeds("CPU", LIVES, 0.0).tolist() == pytest.approx([8_000, 8_000])
    teach(loading, B, times=5, ttft_s=0.12)
    assert loading.speeds("CPU", LIVES, 0.0).tolist() == pytest.approx([8_000, 80_000])
    assert loading.speeds("DISK", LIVES, 0.0).tolist() == [DISK, DISK]
    loading.forget(A)
    assert loading.speeds("CPU", LIVES, 0.0)[1] == pytest.approx(80_000)
    assert dict(loading.known(0.0))["CPU"] == loading.speeds("CPU", LIVES, 0.0)[0]


def test_the_operators_word_counts_whatever_is_seen() -> None:
    loading = Loading({"CPU": 150_000.0})
    teach(loading, times=20)
    assert loading.speeds("CPU", LIVES, 0.0).tolist() == [150_000, 150_000]
    assert dict(loading.known(0.0)) == {"CPU": 150_000}


@pytest.mark.parametrize(
    "little",
    [
        {"tokens": LEAST_TOKENS - 1, "computed": 0},
        {"tokens": 8_000, "computed": 8_000 // LEVER + 1},
        {"ttft_s": 0.0},
        {"ttft_s": -1.0},
        {"ttft_s": float("nan")},
    ],
)
def test_what_says_little_teaches_nothing(little: dict[str, Any]) -> None:
    loading = Loading({})
    teach(loading, times=20, **little)
    assert loading.speeds("CPU", LIVES, 0.0).tolist() == [CPU, CPU]
    assert len(loading) == 0


def test_a_prompt_that_came_sooner_than_it_could_have_been_computed_gives_a_finite_speed() -> None:
    loading = Loading({})
    teach(loading, computed=1_000, ttft_s=0.1)
    assert loading.speeds("CPU", LIVES, 0.0)[0] == pytest.approx(8_000 / 0.025)


def test_a_few_odd_answers_move_nothing() -> None:
    loading = Loading({})
    for number in range(30):
        teach(loading, times=1, ttft_s=60.0 if number % 4 == 0 else 0.1)
    assert loading.speeds("CPU", LIVES, 0.0)[0] == pytest.approx(100_000)


def test_what_nobody_shows_any_more_is_forgotten() -> None:
    loading = Loading({})
    teach(loading, now=0.0)
    assert loading.speeds("CPU", LIVES, KEPT_S)[0] == pytest.approx(8_000)
    assert loading.speeds("CPU", LIVES, 1.2 * KEPT_S).tolist() == [CPU, CPU]
    assert dict(loading.known(1.2 * KEPT_S)) == {}
    teach(loading, times=2, now=1.2 * KEPT_S)
    assert loading.speeds("CPU", LIVES, 1.2 * KEPT_S).tolist() == [CPU, CPU]


def test_no_more_tiers_are_kept_than_an_index_has() -> None:
    loading = Loading({})
    for number in range(3 * MAX_TIERS):
        teach(loading, tier=f"T{number}", now=float(number))
    assert len(loading) == 2 * MAX_TIERS
    last = f"T{3 * MAX_TIERS - 1}"
    assert loading.speeds(last, LIVES, 3.0 * MAX_TIERS)[0] == pytest.approx(8_000)
    loading.forget(A)
    assert len(loading) == MAX_TIERS


def ended(**changes: Any) -> Done:
    usual = Done(
        decision_id="r",
        outcome=Outcome.OK,
        status=200,
        prompt_tokens=8_100,
        cached_tokens=8_000,
        completion_tokens=51,
        ttft_s=1.0,
        duration_s=2.0,
    )
    return replace(usual, **changes)


def matched(*loaded: tuple[str, int], **load: Any) -> Endpoint:
    found = Match(8_000, Source.PRECISE, 0.9, loaded)
    return endpoint("a", match=found, load=Load(**load))


def test_an_answer_says_what_was_loaded_and_what_was_computed() -> None:
    seen = Loaded(tier="CPU", tokens=7_000, computed=100, ttft_s=1.0)
    assert shown_by(ended(), matched(("CPU", 7_000))) == seen
    whole = ended(completion_tokens=1, duration_s=1.0)
    assert shown_by(whole, matched(("CPU", 7_000), waiting=0)) == seen


@pytest.mark.parametrize(
    ("done", "at"),
    [
        (ended(), matched()),
        (ended(), matched(("CPU", 4_000), ("DISK", 4_000))),
        (ended(), matched(("CPU", 8_000), reserved_pending=1)),
        (ended(), matched(("CPU", 8_000), waiting=2)),
        (ended(cached_tokens=7_999), matched(("CPU", 8_000))),
        (ended(cached_tokens=None), matched(("CPU", 8_000))),
        (ended(prompt_tokens=None), matched(("CPU", 8_000))),
        (ended(ttft_s=None), matched(("CPU", 8_000))),
        (ended(ttft_s=2.0), matched(("CPU", 8_000))),
        (ended(completion_tokens=None), matched(("CPU", 8_000))),
    ],
    ids=[
        *("gpu", "two tiers", "pending", "waiting", "gone", "no cached", "no prompt", "no ttft"),
        *("whole", "no answer"),
    ],
)
def test_other_answers_say_nothing_of_loading(done: Done, at: Endpoint) -> None:
    assert shown_by(done, at) is None
