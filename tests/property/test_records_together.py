"""Records that are applied together mean what they mean one after the other."""

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix import PredictedIndex, PrefixIndex
from epp.state.records import BlockChange, EngineStatus, Part, Record, TierChange, encode

POOL = PoolId("p")
IDS = [EndpointId(POOL, name, 1) for name in "abc"]
KEYS = range(12)
some_keys = st.lists(st.sampled_from(KEYS), max_size=6).map(tuple)


@st.composite
def changes(draw: st.DrawFn) -> BlockChange:
    slower = TierChange(draw(st.sampled_from(("CPU", "SHARED"))), draw(some_keys), draw(some_keys))
    return BlockChange(
        stored=draw(some_keys),
        removed=draw(some_keys),
        reset=draw(st.booleans()),
        scheme=1 if draw(st.integers(0, 15)) else 99,
        tiers=draw(st.sampled_from(((), (slower,)))),
    )


@st.composite
def records(draw: st.DrawFn) -> bytes:
    part = draw(st.sampled_from((None, None, None, Part(0, 1), Part(0, 2), Part(1, 2))))
    return encode(
        Record(
            incarnation=Incarnation(draw(st.sampled_from(IDS)), draw(st.integers(1, 2))),
            nonce=draw(st.integers(1, 2)),
            seq=draw(st.integers(1, 4)),
            blocks=draw(st.none() | changes()),
            status=EngineStatus(ready=True, events=True),
            part=part,
        )
    )


def a_pool() -> PoolState:
    state = PoolState(POOL, Endpoints(), PrefixIndex(8), PredictedIndex(100, 60.0), LoadBook())
    members = [Member(id=one, address=f"h:{at}", has_sidecar=True) for at, one in enumerate(IDS, 1)]
    state.replace(members, 0.0)
    return state


def seen(state: PoolState) -> object:
    """All that decisions and their readers can see of the blocks."""
    found = state.candidates(tuple(KEYS), block_tokens=64, prompt_tokens=900, now=0.0)
    return (
        [(endpoint.id, endpoint.match) for endpoint in found],
        [(one.incarnation, one.blocks, one.rung) for one in state.overview(0.0)],
        [state.shows(one, (key,), 0.0) for one in IDS for key in KEYS],
        state.lost(0.0),
        state.counts,
    )


@given(st.lists(st.lists(records(), max_size=12), max_size=3))
@settings(max_examples=150, deadline=None)
def test_together_is_as_one_after_the_other(batches: list[list[bytes]]) -> None:
    together, alone = a_pool(), a_pool()
    for batch in batches:
        together.apply_all(batch, 0.0)
        for record in batch:
            alone.apply(record, 0.0)
        assert seen(together) == seen(alone)
