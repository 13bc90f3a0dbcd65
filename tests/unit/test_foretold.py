"""Blocks that other replicas foretell: what is made of their keys, and when it is over."""

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.foretold import Foretold
from epp.state.sums import EndpointSum, ReplicaSums

POOL = PoolId("p")
A = Incarnation(EndpointId(POOL, "a", 8000), 100)
B = Incarnation(EndpointId(POOL, "b", 8000), 100)
LIVES = (A, B)
LIFE_OF = {inc.endpoint: inc for inc in LIVES}.get


def told(*said: tuple[Incarnation, tuple[int, ...]]) -> ReplicaSums:
    return ReplicaSums(
        "other", tuple(EndpointSum(incarnation=inc, keys=keys) for inc, keys in said)
    )


def test_the_last_of_a_requests_keys_that_was_told_says_how_much_will_be_there() -> None:
    foretold = Foretold()
    foretold.replace([told((A, (3, 6, 9))), told((B, (2,)))], LIFE_OF)
    assert foretold.depths((1, 2, 3, 4, 5, 6, 7), LIVES).tolist() == [6, 2]
    assert foretold.depths((1, 2, 3, 4), (B, A)).tolist() == [2, 3]
    assert foretold.depths((8,), LIVES).tolist() == [0, 0]


def test_what_is_told_replaces_what_was() -> None:
    foretold = Foretold()
    foretold.replace([told((A, (1,)))], LIFE_OF)
    foretold.replace([told((A, (2,)), (B, (2, 3)))], LIFE_OF)
    assert foretold.depths((1,), LIVES).tolist() == [0, 0]
    assert foretold.depths((1, 2), LIVES).tolist() == [2, 2]
    assert len(foretold) == 3
    foretold.replace((), LIFE_OF)
    assert foretold.depths((1, 2), LIVES).tolist() == [0, 0]
    assert not foretold


def test_nothing_is_foretold_of_another_life_or_of_who_is_no_member() -> None:
    foretold = Foretold()
    earlier = Incarnation(A.endpoint, 99)
    stranger = Incarnation(EndpointId(POOL, "c", 8000), 100)
    foretold.replace([told((earlier, (1,)), (stranger, (1,)))], LIFE_OF)
    assert not foretold
    foretold.replace([told((Incarnation(A.endpoint, 0), (1,)))], LIFE_OF)
    assert foretold.depths((1,), LIVES).tolist() == [1, 0]
