"""The writer's sequence is the truth."""

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.feed import Feed, Verdict
from epp.state.records import BlockChange, Record

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


def test_a_replaced_writer_is_fenced_unless_it_claims_again() -> None:
    feed = Feed()
    feed.on(rec(1, 1, reset=True), 0.0)
    feed.on(rec(2, 1, reset=True), 0.1)
    assert feed.on(rec(1, 2), 0.2) is Verdict.FENCED
    assert feed.on(rec(2, 2), 0.3) is Verdict.NEXT
    assert feed.on(rec(1, 1, reset=True), 0.4) is Verdict.RESET
    assert feed.on(rec(2, 3), 0.5) is Verdict.FENCED


def test_the_same_writer_may_start_over() -> None:
    feed = Feed()
    feed.on(rec(1, 1, reset=True), 0.0)
    feed.on(rec(1, 2), 0.1)
    assert feed.on(rec(1, 1, reset=True), 0.2) is Verdict.RESET
    assert feed.on(rec(1, 2), 0.3) is Verdict.NEXT


def test_after_a_gap_nothing_that_is_restated_is_known() -> None:
    feed = Feed()
    feed.on(rec(1, 1, reset=True), 0.0)
    again = BlockChange(reset=True, restated=True)
    feed.on(Record(incarnation=LIFE, nonce=1, seq=2, blocks=again), 0.1)
    assert feed.known
    feed.on(rec(1, 4), 0.2)
    assert not feed.known
