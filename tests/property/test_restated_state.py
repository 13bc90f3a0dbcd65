"""A full state that is said again: late readers end with the truth, the others never lose it."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from epp.framework import EndpointId, Incarnation, PoolId, Rung
from epp.state.engine_blocks import Delta
from epp.state.mirror import Mirror
from epp.state.prefix.index import PrefixIndex
from epp.state.records import EngineStatus, Record, encode, parse
from sidecar.state.outbox import Outbox

LIFE = Incarnation(EndpointId(PoolId("p"), "a", 1), 5)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(1, 12)),
        st.tuples(st.just("remove"), st.integers(1, 12)),
        st.tuples(st.sampled_from(["clear", "restate", "say"]), st.just(0)),
    ),
    max_size=60,
)


class Reader:
    """What one picker makes of the records that it sees."""

    def __init__(self) -> None:
        self.index = PrefixIndex(1000)
        self.mirror = Mirror(self.index, own_block_tokens=64, fresh_s=2.0, counts=Counter())

    def read(self, data: bytes) -> None:
        record = parse(data)
        if self.mirror.accept(record, LIFE, 0.0) and record.blocks is not None:
            self.mirror.change(record.blocks, LIFE, most=None)

    @property
    def blocks(self) -> set[int]:
        return {key for key in range(1, 13) if self.index.lookup([key], [LIFE])}


@given(steps, st.integers(0, 30), st.integers(1, 4))
def test_every_reader_ends_with_the_truth(
    played: list[tuple[str, int]], joins_at: int, keys_per_record: int
) -> None:
    truth: set[int] = set()
    outbox = Outbox(lambda: sorted(truth), keys_per_record=keys_per_record)
    log: list[bytes] = []

    def say() -> None:
        parcel = outbox.take()
        outbox.sent()
        status = EngineStatus(ready=True, events=True)
        record = Record(
            incarnation=LIFE, nonce=1, seq=len(log) + 1, blocks=parcel.blocks, status=status
        )
        log.append(encode(record))

    for what, key in played:
        if what == "store" and key not in truth:
            truth.add(key)
            outbox.blocks(Delta(reset=False, stored=(key,), removed=()))
        elif what == "remove" and key in truth:
            truth.discard(key)
            outbox.blocks(Delta(reset=False, stored=(), removed=(key,)))
        elif what == "clear":
            truth.clear()
            outbox.blocks(Delta(reset=True, stored=(), removed=()))
        elif what == "restate":
            outbox.restate()
        elif what == "say":
            say()
    outbox.restate()
    while not outbox.empty:
        say()
    early, late = Reader(), Reader()
    for number, data in enumerate(log):
        early.read(data)
        if number >= min(joins_at, len(log) - 1) or _last_full_state(log) <= number:
            late.read(data)
    assert early.blocks == truth
    assert late.blocks == truth
    assert early.mirror.rung(LIFE.endpoint, 0.0) is Rung.PRECISE
    assert late.mirror.rung(LIFE.endpoint, 0.0) is Rung.PRECISE


def _last_full_state(log: list[bytes]) -> int:
    return max(number for number, data in enumerate(log) if parse(data).reset)


def test_who_followed_all_along_does_not_forget_while_it_is_restated() -> None:
    truth = [1, 2, 3]
    outbox = Outbox(lambda: truth, keys_per_record=1)
    reader = Reader()
    for seq in range(1, 8):
        if seq == 4:
            outbox.restate()
        parcel = outbox.take()
        outbox.sent()
        reader.read(
            encode(Record(incarnation=LIFE, nonce=1, seq=seq, blocks=parcel.blocks, status=None))
        )
        if seq >= 3:
            assert reader.blocks == {1, 2, 3}
