"""What came together from the log is cut into portions."""

from hypothesis import given
from hypothesis import strategies as st

from epp.state.hearing import PORTION_BYTES, RECORD_BYTES, portions

sizes = st.lists(st.sampled_from((0, 100, 2_400, 20_000, PORTION_BYTES, 10 * PORTION_BYTES)))


@given(sizes)
def test_no_record_is_lost_and_none_comes_out_of_order(asked: list[int]) -> None:
    records = [bytes(size) for size in asked]
    assert [record for some in portions(records) for record in some] == records


@given(sizes)
def test_a_portion_is_no_more_than_a_turn_takes_unless_it_is_one_record(asked: list[int]) -> None:
    for some in portions([bytes(size) for size in asked]):
        assert len(some) > 0
        assert len(some) == 1 or sum(len(one) + RECORD_BYTES for one in some) <= PORTION_BYTES


def test_many_small_records_go_together() -> None:
    assert [len(some) for some in portions([bytes(100)] * 100)] == [36, 36, 28]
