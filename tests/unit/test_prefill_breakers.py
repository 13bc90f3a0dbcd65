"""Prefill pods that fail again and again are left out for a while."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.trust.breakers import MAX_HOSTS, Breakers
from tests.fakes.handoffs import A, B, C


def opened() -> Breakers:
    breakers = Breakers(failures=2, pause_s=1.0, max_pause_s=4.0)
    for _ in range(2):
        breakers.failed(A, 0.0)
    return breakers


def test_a_pod_is_left_out_after_failures_in_a_row() -> None:
    breakers = Breakers(failures=3)
    for _ in range(2):
        breakers.failed(A, 0.0)
    assert breakers.usable((A, B), 0.0) == (A, B)
    breakers.succeeded(A)
    for _ in range(2):
        breakers.failed(A, 0.0)
    assert breakers.usable((A, B), 0.0) == (A, B)
    breakers.failed(A, 0.0)
    assert breakers.usable((A, B, C), 0.0) == (B, C)
    assert (breakers.open, breakers.opened) == (1, 1)


def test_after_the_pause_one_leg_tries_it_while_others_go_elsewhere() -> None:
    breakers = opened()
    assert breakers.usable((A, B), 0.9) == (B,)
    assert breakers.usable((A, B), 1.0) == (A, B)
    breakers.sent(A, 1.0)
    assert breakers.usable((A, B), 1.0) == (B,)
    breakers.succeeded(A)
    assert breakers.usable((A, B), 1.0) == (A, B)
    assert breakers.open == 0


def test_each_probe_that_fails_doubles_the_pause_up_to_its_limit() -> None:
    breakers, now, pauses = opened(), 0.0, []
    for _ in range(5):
        began = now
        while not breakers.usable((A,), now):
            now += 0.25
        pauses.append(now - began)
        breakers.sent(A, now)
        breakers.failed(A, now)
    assert pauses == [1.0, 2.0, 4.0, 4.0, 4.0]
    assert breakers.opened == 1


def test_legs_that_were_under_way_when_it_opened_do_not_make_the_pause_longer() -> None:
    breakers = opened()
    for _ in range(20):
        breakers.failed(A, 0.5)
    assert breakers.usable((A,), 1.0) == (A,)


def test_a_probe_whose_end_nobody_tells_shuts_nothing_for_ever() -> None:
    breakers = opened()
    breakers.sent(A, 1.0)
    assert breakers.usable((A,), 1.9) == ()
    assert breakers.usable((A,), 2.0) == (A,)


def test_only_so_many_pods_are_remembered_the_latest_ones() -> None:
    breakers = Breakers(failures=1, max_hosts=2)
    for target in (A, B, C):
        breakers.failed(target, 0.0)
    assert len(breakers) == 2
    assert breakers.usable((A, B, C), 0.0) == (A,)
    assert MAX_HOSTS == 1024


@given(st.lists(st.sampled_from(["sent", "failed", "succeeded", "wait"]), max_size=60))
def test_whatever_happens_a_pod_is_tried_again_within_the_longest_pause(steps: list[str]) -> None:
    breakers, now = Breakers(failures=2, pause_s=1.0, max_pause_s=4.0), 0.0
    for step in steps:
        match step:
            case "sent":
                breakers.sent(A, now)
            case "failed":
                breakers.failed(A, now)
            case "succeeded":
                breakers.succeeded(A)
                assert breakers.usable((A,), now) == (A,)
            case _:
                now += 0.5
    assert breakers.usable((A,), now + 4.0) == (A,)
