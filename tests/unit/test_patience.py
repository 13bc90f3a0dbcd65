"""How long a body is waited for."""

from hypothesis import given
from hypothesis import strategies as st

from epp.request.transport.patience import BodyPace, Patience

PACE = BodyPace(idle_s=30, bytes_per_s=1_000)


def test_a_body_that_never_comes_has_the_idle_time() -> None:
    assert Patience(PACE, 100.0).until == 130.0


def test_each_byte_buys_time_up_to_the_next_silence() -> None:
    patience = Patience(PACE, 0.0)
    patience.saw(20_000, 10.0)
    assert patience.until == 40.0, "a silence of 30 s"
    patience.saw(21_000, 35.0)
    assert patience.until == 51.0, "30 s and one for each of 21,000 bytes"


def test_empty_pieces_are_no_progress() -> None:
    patience = Patience(PACE, 0.0)
    for second in range(29):
        patience.saw(0, float(second))
    assert patience.until == 30.0


def test_a_byte_a_second_is_not_waited_for() -> None:
    patience = Patience(PACE, 0.0)
    now = 0
    while now < patience.until:
        patience.saw(now, float(now))
        now += 1
    assert now == 31


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 60)), max_size=30),
    st.floats(0.1, 100),
    st.floats(1, 10**6),
)
def test_no_wait_is_longer_than_the_pace_allows(
    pieces: list[tuple[int, float]], idle_s: float, bytes_per_s: float
) -> None:
    pace = BodyPace(idle_s=idle_s, bytes_per_s=bytes_per_s)
    patience, now, held = Patience(pace, 5.0), 5.0, 0
    for size, pause in pieces:
        before = patience.until
        now, held = now + pause, held + size
        patience.saw(held, now)
        assert patience.until >= before or size, "progress never shortens a wait"
        assert patience.until <= now + idle_s
        assert patience.until <= 5.0 + idle_s + held / bytes_per_s
