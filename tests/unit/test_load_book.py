"""Reservations of our decisions, and the four ways in which they can end."""

import math

import pytest

from epp.framework import EndpointId, Incarnation, Load, PoolId
from epp.state.load import LoadBook, LoadReport, LoadRules, Sums

ENDPOINT = EndpointId(PoolId("p"), "pod", 8000)
LIFE = Incarnation(ENDPOINT, 1_000)
NEXT_LIFE = Incarnation(ENDPOINT, 2_000)


def reserve(
    book: LoadBook,
    name: str = "r",
    *,
    life: Incarnation = LIFE,
    prefill: int = 1_000,
    decode: int = 320,
    writer: bool = True,
    now: float = 0.0,
) -> bool:
    return book.reserve(
        life, name, prefill_tokens=prefill, decode_tokens=decode, has_writer=writer, now=now
    )


def test_a_decision_is_charged_at_once() -> None:
    book = LoadBook()
    reserve(book)
    load = book.load(LIFE, 0.0)
    assert load.reserved_requests == 1
    assert load.reserved_pending == 1
    assert load.reserved_prefill_tokens == 1_000
    assert load.reserved_decode_blocks == 20
    assert load.queue == 1
    assert load.age_s is None


def test_the_first_byte_ends_the_prefill_and_response_headers_do_not() -> None:
    book = LoadBook()
    reserve(book)
    book.response_headers("r", 0.1)
    assert book.load(LIFE, 5.0).reserved_prefill_tokens == 1_000
    book.first_token("r", 5.0)
    load = book.load(LIFE, 5.0)
    assert (load.reserved_requests, load.reserved_pending) == (1, 0)
    assert load.reserved_prefill_tokens == 0
    assert load.reserved_decode_blocks == 20


def test_decode_blocks_count_until_a_report_newer_than_the_first_token() -> None:
    book = LoadBook()
    reserve(book)
    book.first_token("r", 1.0)
    book.report(LIFE, LoadReport(running=0), 1.0)
    assert book.load(LIFE, 1.0).reserved_decode_blocks == 20
    book.report(LIFE, LoadReport(running=1), 1.02)
    load = book.load(LIFE, 1.02)
    assert (load.reserved_decode_blocks, load.reserved_requests) == (0, 1)


def test_the_sidecars_done_ends_a_request_once() -> None:
    book = LoadBook()
    reserve(book)
    assert book.finish("r", 1.0)
    assert not book.finish("r", 2.0)
    assert book.sums() == {}
    assert len(book) == 0


def test_an_end_in_the_response_headers_ends_a_request_without_a_first_byte() -> None:
    book = LoadBook()
    reserve(book)
    book.response_headers("r", 0.2)
    assert book.finish("r", 0.2)
    assert book.load(LIFE, 0.2) == Load()


def test_a_reset_before_the_headers_ends_a_request_and_measures_nothing() -> None:
    book = LoadBook()
    for number in range(30):
        reserve(book, str(number))
        book.finish(str(number), 0.001, measured=False)
    assert book.p99_duration_s == 60.0
    assert book.sums() == {}


def test_after_the_stream_the_sidecars_done_is_waited_for() -> None:
    book = LoadBook()
    book.writer_seen(LIFE)
    reserve(book)
    book.response_headers("r", 0.1)
    book.leave("r", 0.1)
    for now in (1.0, 60.0, 300.0):
        book.report(LIFE, LoadReport(running=1), now)
        assert book.tick(now) == []
        assert book.load(LIFE, now).reserved_requests == 1
    assert book.finish("r", 301.0)
    assert book.sums() == {}


def test_waiting_for_done_has_a_cap_and_then_an_estimate() -> None:
    book = LoadBook(LoadRules(done_cap_s=100.0))
    book.writer_seen(LIFE)
    reserve(book)
    book.response_headers("r", 0.1)
    book.leave("r", 0.1)
    assert book.tick(100.0) == []
    assert book.tick(100.1) == ["r"]
    assert book.sums() == {}


def test_a_lost_writer_turns_waiting_into_an_estimate() -> None:
    book = LoadBook()
    book.writer_seen(LIFE)
    reserve(book, now=10.0)
    book.response_headers("r", 10.1)
    book.leave("r", 10.1)
    book.writer_lost(LIFE, 15.0)
    book.report(LIFE, LoadReport(running=1), 15.2)
    assert book.tick(15.2) == ["r"]


def test_without_a_writer_prefill_drains_at_the_observed_speed() -> None:
    book = LoadBook(LoadRules(prefill_tokens_per_s=1_000.0))
    reserve(book, "a", writer=False)
    reserve(book, "b", writer=False)
    for name in ("a", "b"):
        book.response_headers(name, 0.0)
        book.leave(name, 0.0)
    left = [book.load(LIFE, now).reserved_prefill_tokens for now in (0.0, 0.5, 1.0, 1.5, 2.0)]
    assert left == [2_000, 1_500, 1_000, 500, 0]
    assert book.load(LIFE, 2.0).reserved_requests == 2
    book.report(LIFE, LoadReport(running=2), 2.1)
    assert book.load(LIFE, 2.1).reserved_requests == 0


def test_the_speed_is_the_one_observed_there_with_the_queue_ahead_counted() -> None:
    book = LoadBook()
    for name in "abc":
        reserve(book, name, prefill=4_000)
    for name, at in (("a", 2.0), ("b", 4.0), ("c", 6.0)):
        assert book.prefill_tokens_per_s(LIFE) == 5_000.0
        book.first_token(name, at)
    assert book.prefill_tokens_per_s(LIFE) == pytest.approx(2_000.0)
    assert book.prefill_tokens_per_s(NEXT_LIFE) == pytest.approx(2_000.0)
    assert LoadBook().prefill_tokens_per_s(LIFE) == 5_000.0


def test_without_a_writer_the_decode_part_ends_with_a_report_after_the_headers() -> None:
    book = LoadBook()
    reserve(book, prefill=0, writer=False)
    book.report(LIFE, LoadReport(), 0.5)
    book.response_headers("r", 1.0)
    book.leave("r", 1.0)
    assert book.load(LIFE, 1.0).reserved_decode_blocks == 20
    book.report(LIFE, LoadReport(), 1.0)
    assert book.load(LIFE, 1.0).reserved_decode_blocks == 20
    book.report(LIFE, LoadReport(), 1.25)
    assert book.load(LIFE, 1.25).reserved_requests == 0


def test_without_writer_and_reports_the_pools_p99_duration_ends_it() -> None:
    book = LoadBook()
    for number in range(40):
        reserve(book, f"old-{number}")
        book.finish(f"old-{number}", 4.0)
    assert book.p99_duration_s == 4.0
    reserve(book, writer=False, now=100.0)
    book.response_headers("r", 100.5)
    book.leave("r", 100.5)
    assert book.tick(103.9) == []
    assert book.tick(104.0) == ["r"]


def test_leaving_after_the_p99_duration_ends_it_at_once() -> None:
    book = LoadBook()
    reserve(book, writer=False)
    book.response_headers("r", 61.0)
    book.leave("r", 61.0)
    assert book.sums() == {}
    assert book.tick(61.0) == ["r"]


def test_a_first_token_and_a_done_during_an_estimate_are_heard() -> None:
    book = LoadBook()
    for name in ("a", "b"):
        reserve(book, name, prefill=100_000, writer=False)
        book.response_headers(name, 0.1)
        book.leave(name, 0.1)
    book.report(LIFE, LoadReport(), 0.2)
    book.first_token("a", 0.3)
    assert book.load(LIFE, 0.3).reserved_requests == 1
    assert book.finish("b", 0.4)
    assert book.load(LIFE, 0.4).reserved_prefill_tokens == 0
    assert book.tick(0.4) == ["a"]


def test_the_book_is_bounded_and_counts_what_it_cannot_hold() -> None:
    book = LoadBook(LoadRules(max_reservations=2))
    assert reserve(book, "a")
    assert not reserve(book, "a")
    assert reserve(book, "b")
    assert not reserve(book, "c")
    assert book.untracked == 1
    book.finish("a", 1.0)
    assert reserve(book, "c")


def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    book = LoadBook(LoadRules(max_reservations=2))
    book.writer_seen(LIFE)
    for number in range(100):
        reserve(book, str(number))
        book.leave(str(number), 0.0)
        book.finish(str(number), 0.0)
    assert len(book._deadlines) <= 9


def test_requests_that_no_report_ever_shows_do_not_pile_up() -> None:
    book = LoadBook()
    for number in range(1_000):
        reserve(book, str(number))
        book.first_token(str(number), 0.1)
        book.finish(str(number), 0.2)
    assert len(book._lives[LIFE].unshown) <= 64


def test_a_report_older_than_two_seconds_says_nothing() -> None:
    book = LoadBook()
    full = LoadReport(waiting=3, running=4, kv_usage=0.5, total_blocks=100, block_tokens=32)
    book.report(LIFE, full, 10.0)
    fresh = book.load(LIFE, 12.0)
    assert (fresh.waiting, fresh.running, fresh.kv_usage) == (3, 4, 0.5)
    assert (fresh.active_blocks, fresh.total_blocks, fresh.block_tokens) == (50.0, 100, 32)
    stale = book.load(LIFE, 12.5)
    assert (stale.waiting, stale.running, stale.kv_usage, stale.active_blocks) == (None,) * 4
    assert stale.age_s == 2.5


def test_decode_blocks_are_counted_in_the_engines_own_size() -> None:
    book = LoadBook()
    book.report(LIFE, LoadReport(block_tokens=128), 0.0)
    reserve(book, decode=300)
    assert book.load(LIFE, 0.0).reserved_decode_blocks == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1, 1e300])
def test_nonsense_in_a_report_is_unknown(bad: float) -> None:
    names = ("waiting", "running", "kv_usage", "total_blocks", "block_tokens")
    report = LoadReport(**dict.fromkeys(names, bad))
    assert report == LoadReport()
    assert LoadReport(block_tokens=0, total_blocks=0, kv_usage=1.01) == LoadReport()


def test_the_first_known_start_keeps_the_reservations_made_before_it() -> None:
    book = LoadBook()
    unborn = Incarnation(ENDPOINT, 0)
    reserve(book, life=unborn)
    book.adopt(unborn, LIFE)
    assert book.sums() == {LIFE: Sums(1, 1, 1_000, 20)}
    book.finish("r", 1.0)
    assert book.sums() == {}


def test_absurd_sizes_are_clamped() -> None:
    book = LoadBook()
    reserve(book, prefill=-5, decode=-5)
    reserve(book, "huge", prefill=2**80, decode=2**80)
    load = book.load(LIFE, 0.0)
    assert 0 < load.reserved_prefill_tokens <= 2**31
    assert 0 < load.reserved_decode_blocks <= 2**31


OTHER = Incarnation(EndpointId(PoolId("p"), "other", 8000), 1_000)


def move(book: LoadBook, to: Incarnation = OTHER) -> bool:
    return book.move(to, "r", prefill_tokens=700, decode_tokens=160, has_writer=True)


def test_a_request_served_elsewhere_is_load_there_with_the_age_that_it_has() -> None:
    book = LoadBook()
    reserve(book, now=0.0)
    assert move(book)
    assert book.sums() == {OTHER: Sums(1, 1, 700, 10)}
    assert not move(book)
    for number in range(20):
        reserve(book, f"s{number}", life=LIFE, now=0.0)
        book.finish(f"s{number}", 9.0)
    book.finish("r", 9.0)
    assert book.p99_duration_s == 9.0
    assert not move(book)


def test_a_request_whose_answer_had_begun_moves_without_its_prefill() -> None:
    book = LoadBook()
    reserve(book)
    book.first_token("r", 0.5)
    assert move(book)
    assert book.sums() == {OTHER: Sums(1, 0, 0, 10)}
    book.report(OTHER, LoadReport(), 1.0)
    assert book.sums() == {OTHER: Sums(1, 0, 0, 0)}


@pytest.mark.parametrize("writer", [True, False])
def test_a_request_whose_stream_has_ended_stays(writer: bool) -> None:
    book = LoadBook()
    book.writer_seen(LIFE)
    reserve(book, writer=writer)
    book.response_headers("r", 0.1)
    book.leave("r", 0.2)
    assert not move(book)
    assert set(book.sums()) == {LIFE}
