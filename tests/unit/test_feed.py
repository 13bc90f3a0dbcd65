"""The writer's sequence is the truth."""

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.feed import Feed, Verdict
from epp.state.records import BlockChange, Part, Record

LIFE = Incarnation(EndpointId(PoolId("p"), "a", 1), 5)


def rec(nonce: int, seq: int, *, reset: bool = False) -> Record:
    return Record(incarnation=LIFE, nonce=nonce, seq=seq, blocks=BlockChange(reset=reset))


def test_a_writer_from_its_beginning_is_complete() -> None:
    feed = Feed()
    assert feed.on(rec(1, 1, reset=True), 0.0) is Verdict.RESET
    assert feed.on(rec(1, 2), 0.1) is Verdict.NEXT
    assert feed.complete
    assert feed.last_at == 0.1


def test_a_jump_is_a_gap_until_the_next_full_state() -> None:
    feed = Feed()
    feed.on(rec(1, 1, reset=True), 0.0)
    assert feed.on(rec(1, 3), 0.1) is Verdict.GAP
    assert not feed.complete
    assert feed.on(rec(1, 4), 0.2) is Verdict.NEXT
    assert not feed.complete
    assert feed.on(rec(1, 9, reset=True), 0.3) is Verdict.RESET
    assert feed.complete


def test_joining_in_the_middle_is_late_and_no_gap() -> None:
    feed = Feed()
    assert feed.on(rec(1, 77), 0.0) is Verdict.LATE
    assert not feed.complete


def test_a_new_writer_without_a_full_state_is_a_gap() -> None:
    feed = Feed()
    feed.on(rec(1, 1, reset=True), 0.0)
    assert feed.on(rec(2, 2), 0.1) is Verdict.GAP


def test_duplicates_change_nothing() -> None:
    feed = Feed()
    feed.on(rec(1, 1, reset=True), 0.0)
    feed.on(rec(1, 2), 0.1)
    assert feed.on(rec(1, 2), 9.0) is Verdict.DUPLICATE
    assert feed.on(rec(1, 1), 9.0) is Verdict.DUPLICATE
    assert feed.last_at == 0.1
    assert feed.on(rec(1, 3), 9.1) is Verdict.NEXT


def test_a_replaced_writer_is_fenced() -> None:
    feed = Feed()
    feed.on(rec(1, 1, reset=True), 0.0)
    feed.on(rec(2, 1, reset=True), 0.1)
    assert feed.on(rec(1, 2), 0.2) is Verdict.FENCED
    assert feed.on(rec(2, 2), 0.3) is Verdict.NEXT
    assert feed.on(rec(1, 1, reset=True), 0.4) is Verdict.FENCED


def part(nonce: int, seq: int, index: int = 0, of: int = 1) -> Record:
    blocks = BlockChange(reset=index == 0)
    return Record(incarnation=LIFE, nonce=nonce, seq=seq, blocks=blocks, part=Part(index, of))


def test_a_snapshot_makes_a_late_reader_whole_and_takes_it_back_to_where_it_was_made() -> None:
    feed = Feed()
    feed.on(rec(1, 77), 0.0)
    assert feed.on(part(1, 70), 0.1) is Verdict.RESET
    assert feed.complete
    assert feed.last_at == 0.0
    assert feed.on(rec(1, 71), 0.2) is Verdict.NEXT
    assert feed.complete


def test_who_followed_all_along_passes_over_snapshots() -> None:
    feed = Feed()
    feed.on(part(1, 0), 0.0)
    feed.on(rec(1, 1), 0.0)
    assert feed.on(part(1, 1), 0.1) is Verdict.DUPLICATE
    assert feed.on(rec(1, 2), 0.2) is Verdict.NEXT


def test_a_snapshot_ahead_is_taken_for_the_records_that_are_missing() -> None:
    feed = Feed()
    feed.on(part(1, 0), 0.0)
    assert feed.on(part(1, 5), 0.1) is Verdict.RESET
    assert feed.on(rec(1, 6), 0.2) is Verdict.NEXT
    assert feed.complete


def test_who_spoke_before_a_later_writers_snapshot_is_replaced() -> None:
    feed = Feed()
    feed.on(rec(1, 1, reset=True), 0.0)
    assert feed.on(part(2, 0), 0.1) is Verdict.RESET
    assert feed.on(rec(1, 2), 0.2) is Verdict.FENCED
    assert feed.on(rec(2, 1), 0.3) is Verdict.NEXT
    assert feed.complete


def test_only_a_whole_snapshot_counts() -> None:
    feed = Feed()
    assert feed.on(part(1, 4, 0, 3), 0.0) is Verdict.RESET
    assert not feed.complete
    assert feed.on(part(1, 4, 2, 3), 0.0) is Verdict.DUPLICATE
    assert feed.on(part(1, 4, 1, 3), 0.0) is Verdict.NEXT
    assert feed.on(part(2, 4, 2, 3), 0.0) is Verdict.DUPLICATE
    assert not feed.complete
    assert feed.on(part(1, 4, 2, 3), 0.0) is Verdict.NEXT
    assert feed.complete


def test_a_record_amid_a_snapshot_breaks_it() -> None:
    feed = Feed()
    feed.on(part(1, 4, 0, 2), 0.0)
    assert feed.on(rec(1, 5), 0.0) is Verdict.GAP
    assert feed.on(part(1, 4, 1, 2), 0.0) is Verdict.DUPLICATE
    assert not feed.complete


def test_a_snapshot_of_a_replaced_writer_is_fenced() -> None:
    feed = Feed()
    feed.on(part(1, 0), 0.0)
    feed.on(rec(2, 1, reset=True), 0.0)
    assert feed.on(part(1, 9), 0.1) is Verdict.FENCED
    assert feed.complete
