"""Memory returns: what is known of pods and of their lives goes with them."""

import gc

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.pool import PoolState
from epp.state.prefix import PredictedIndex, PrefixIndex
from epp.state.records import BlockChange, EngineStatus, Record, encode

POOL = PoolId("p")
LIVES = 10_000


def test_memory_returns_after_ten_thousand_lives_of_pods() -> None:
    """Every pod has one restart; every tenth of a second one goes and another one comes.

    Counted in objects that hold others, so that not one of each life may stay.
    """
    index = PrefixIndex(1_000)
    state = PoolState(POOL, Endpoints(), index, PredictedIndex(1_000, 60.0), LoadBook())
    before = objects()
    for number in range(LIVES // 2):
        now = number / 10
        name = EndpointId(POOL, f"pod-{number}", 8000)
        state.replace([Member(id=name, address=f"10.0.0.1:{number + 1}")], now)
        for life in (1, 2):
            state.apply(record(name, life, 100 * number), now)
            assert index.blocks(Incarnation(name, life)) == 20
        state.tick(now)
    state.replace([], now)
    for _ in range(10):
        state.tick(now)
    assert (len(index), index.slots, index.retired_blocks) == (0, 0, 0)
    assert objects() - before < LIVES // 20
    assert index.nbytes < 1 << 20


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def record(endpoint: EndpointId, life: int, first: int) -> bytes:
    blocks = BlockChange(stored=tuple(range(first, first + 20)), reset=True)
    status = EngineStatus(ready=True, events=True)
    return encode(
        Record(
            incarnation=Incarnation(endpoint, life), nonce=1, seq=1, blocks=blocks, status=status
        )
    )
