"""What waits to be said: bounded, in order, and whole after a failure."""

from epp.state.engine_blocks import Delta
from epp.state.records import BlockChange, Done, FirstToken, TierChange
from epp.state.writing.outbox import REPORTS_PER_RECORD, Outbox


def stored(*keys: int) -> Delta:
    return Delta(reset=False, stored=keys, removed=())


def removed(*keys: int) -> Delta:
    return Delta(reset=False, stored=(), removed=keys)


def begun(**limits: int) -> Outbox:
    """An outbox whose snapshot has been said."""
    outbox = Outbox(**limits)
    outbox.stated()
    return outbox


def test_a_snapshot_is_the_first_thing_to_say_and_nothing_waits_beside_it() -> None:
    outbox = Outbox()
    assert outbox.owes_snapshot
    outbox.blocks(stored(1))
    assert not outbox.empty
    assert outbox.take().blocks is None
    outbox.stated()
    assert outbox.empty
    outbox.blocks(stored(2))
    assert outbox.take().blocks == BlockChange(stored=(2,))


def test_all_is_said_only_when_nothing_waits() -> None:
    outbox = begun(keys_per_record=1)
    outbox.blocks(stored(1, 2))
    outbox.take()
    assert not outbox.settled
    outbox.take()
    assert outbox.settled


def test_tiers_are_said_apart_and_share_the_room_of_a_record() -> None:
    outbox = begun(keys_per_record=3)
    slower = (TierChange("CPU", (1, 7), (8,)), TierChange("DISK", (), (9,)))
    outbox.blocks(Delta(reset=False, stored=(1,), removed=(2,), tiers=slower))
    assert outbox.crowded
    first, second = outbox.take().blocks, outbox.take().blocks
    assert first == BlockChange(stored=(1,), removed=(2,), tiers=(TierChange("CPU", (1,)),))
    assert second == BlockChange(
        tiers=(TierChange("CPU", (7,), (8,)), TierChange("DISK", (), (9,)))
    )
    assert outbox.settled


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


def test_one_change_more_than_the_limit_becomes_a_snapshot() -> None:
    outbox = begun(max_changes=3)
    outbox.blocks(stored(1, 2, 3))
    assert not outbox.owes_snapshot
    outbox.blocks(stored(4))
    assert outbox.owes_snapshot
    assert outbox.take().blocks is None


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
    assert parcel.blocks is None
    assert outbox.owes_snapshot


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
