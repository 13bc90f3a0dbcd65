"""How old records may be that a reader finds waiting for it."""

from epp.state.store.abreast import LONG_AGO_S, PROMPT_S, Abreast


def test_who_looks_all_the_time_reads_news_however_long_nothing_came() -> None:
    abreast = Abreast(0.0)
    assert [abreast.looked(at / 2, found=False) for at in range(20)] == [0.0] * 20
    assert abreast.looked(9.9, found=True) == 0.0


def test_what_waited_for_a_slow_reader_is_as_old_as_its_last_look() -> None:
    abreast = Abreast(0.0)
    assert abreast.looked(PROMPT_S, found=True) == 0.0
    assert abreast.looked(PROMPT_S + 16.0, found=True) == 16.0
    assert abreast.looked(PROMPT_S + 16.5, found=True) == 0.0


def test_what_is_read_only_moments_after_a_standstill_is_old_too() -> None:
    abreast = Abreast(0.0)
    assert abreast.looked(20.0, found=False) == 20.0
    assert abreast.looked(20.1, found=True) == 20.1
    assert abreast.looked(20.2, found=True) == 0.0


def test_a_standstill_is_over_when_the_next_look_finds_nothing() -> None:
    abreast = Abreast(0.0)
    abreast.looked(20.0, found=False)
    abreast.looked(20.5, found=False)
    assert abreast.looked(21.0, found=True) == 0.0


def test_no_age_is_beyond_that_of_a_snapshot() -> None:
    assert Abreast(0.0).looked(2 * LONG_AGO_S, found=True) == LONG_AGO_S
