"""What waits to be said: bounded, in order, and whole after a failure."""

from epp.state.engine_blocks import Delta
from epp.state.records import Done, FirstToken
from sidecar.state.outbox import REPORTS_PER_RECORD, Outbox


def stored(*keys: int) -> Delta:
    return Delta(reset=False, stored=keys, removed=())


def removed(*keys: int) -> Delta:
    return Delta(reset=False, stored=(), removed=keys)


def begun(present: list[int] | None = None, **limits: int) -> Outbox:
    """An outbox whose full state has been said."""
    outbox = Outbox(lambda: present or [], **limits)
    outbox.take()
    outbox.sent()
    return outbox


def test_the_first_record_is_a_full_state_even_when_nothing_is_cached() -> None:
    outbox = Outbox(list)
    assert not outbox.empty
    change = outbox.take().blocks
    assert change is not None
    assert change.reset
    assert change.stored == ()
    assert outbox.empty


def test_a_full_state_comes_in_pieces_of_which_only_the_first_resets() -> None:
    outbox = Outbox(lambda: list(range(10)), keys_per_record=4)
    changes = []
    while not outbox.empty:
        parcel = outbox.take()
        outbox.sent()
        assert parcel.blocks is not None
        changes.append((parcel.blocks.reset, parcel.blocks.stored))
    assert changes == [(True, (0, 1, 2, 3)), (False, (4, 5, 6, 7)), (False, (8, 9))]
    assert outbox.resets == 1


def test_changes_that_come_during_a_full_state_wait_behind_it() -> None:
    outbox = Outbox(lambda: [1, 2], keys_per_record=1)
    assert outbox.take().blocks is not None
    outbox.blocks(removed(2))
    second, third = outbox.take().blocks, outbox.take().blocks
    assert second is not None
    assert second.stored == (2,)
    assert third is not None
    assert third.removed == (2,)


def test_changes_of_one_block_replace_each_other() -> None:
    outbox = begun()
    outbox.blocks(stored(1, 2))
    outbox.blocks(removed(1))
    outbox.blocks(removed(3))
    outbox.blocks(stored(3))
    change = outbox.take().blocks
    assert change is not None
    assert (set(change.stored), set(change.removed)) == ({2, 3}, {1})


def test_a_reset_of_the_cache_replaces_all_that_waited() -> None:
    outbox = begun()
    outbox.blocks(stored(1, 2))
    outbox.blocks(Delta(reset=True, stored=(5,), removed=()))
    change = outbox.take().blocks
    assert change is not None
    assert (change.reset, change.stored, change.removed) == (True, (5,), ())


def test_one_change_more_than_the_limit_becomes_a_full_state() -> None:
    present = [7, 8, 9]
    outbox = begun(present, max_changes=3)
    outbox.blocks(stored(1, 2, 3))
    change = outbox.take().blocks
    assert change is not None
    assert not change.reset
    outbox.blocks(stored(1, 2, 3, 4))
    change = outbox.take().blocks
    assert change is not None
    assert (change.reset, change.stored) == (True, (7, 8, 9))


def test_nothing_to_say_is_an_empty_parcel() -> None:
    parcel = begun().take()
    assert (parcel.blocks, parcel.first_tokens, parcel.done) == (None, (), ())


def test_reports_of_a_failed_record_are_said_again_in_order() -> None:
    outbox = begun()
    outbox.first_token(FirstToken("a", 0.1))
    outbox.done(Done(decision_id="a"))
    outbox.take()
    outbox.done(Done(decision_id="b"))
    outbox.failed()
    parcel = outbox.take()
    assert [done.decision_id for done in parcel.done] == ["a", "b"]
    assert [first.decision_id for first in parcel.first_tokens] == ["a"]
    assert parcel.blocks is not None
    assert parcel.blocks.reset


def test_reports_beyond_the_limit_lose_the_oldest_and_are_counted() -> None:
    outbox = begun(max_reports=3)
    for name in "abcd":
        outbox.done(Done(decision_id=name))
    assert outbox.dropped == 1
    assert [done.decision_id for done in outbox.take().done] == ["b", "c", "d"]
    outbox.failed()
    outbox.done(Done(decision_id="e"))
    assert outbox.dropped == 2
    assert [done.decision_id for done in outbox.take().done] == ["c", "d", "e"]


def test_a_record_holds_a_bounded_number_of_reports() -> None:
    outbox = begun()
    for n in range(REPORTS_PER_RECORD + 1):
        outbox.done(Done(decision_id=str(n)))
    assert outbox.crowded
    assert len(outbox.take().done) == REPORTS_PER_RECORD
    assert not outbox.crowded
    assert len(outbox.take().done) == 1
