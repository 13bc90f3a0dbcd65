"""How full a pool is, and whom that concerns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import NoEndpoint, Saturated
from epp.framework import Candidates, Endpoint, EndpointId, Incarnation, Load, PoolId
from epp.request.saturation import saturation, shed

Numbers = tuple[int | None, float | None]


def pool(*loads: Numbers) -> Candidates:
    """Endpoints by waiting requests and KV cache use."""
    made: list[Endpoint] = []
    for number, (waiting, kv_usage) in enumerate(loads):
        ident = EndpointId(PoolId("p"), str(number), 8000)
        made.append(
            Endpoint(
                id=ident,
                address=f"10.0.0.{number}:8000",
                incarnation=Incarnation(ident, 0),
                load=Load(waiting=waiting, kv_usage=kv_usage),
            )
        )
    return Candidates.of(made)


@pytest.mark.parametrize(
    ("loads", "full"),
    [
        ([(0, 0.0)], 0.0),
        ([(5, 0.0)], 1.0),
        ([(0, 0.8)], 1.0),
        ([(2, 0.6)], 0.75),
        ([(4, 0.2)], 0.8),
        ([(50, 1.0)], 10.0),
        ([(10, 0.0), (0, 0.0)], 1.0),
        ([(0, 0.4), (0, 0.0)], 0.25),
        ([(None, None)], 1.0),
        ([(None, None), (0, 0.0)], 0.5),
        ([(2, None)], 0.4),
        ([(None, 0.4)], 0.5),
        ([], 1.0),
    ],
)
def test_saturation_is_the_mean_of_what_is_scarcest(loads: list[Numbers], full: float) -> None:
    assert saturation(pool(*loads)) == pytest.approx(full)


@pytest.mark.parametrize("priority", [0, 1, 2**31 - 1])
def test_only_priorities_below_0_are_shed_and_only_they_are_measured(priority: int) -> None:
    shed(priority, lambda: pytest.fail("nobody has to be asked"))


def test_a_request_is_shed_where_the_pool_is_full_and_passes_below() -> None:
    shed(-1, lambda: pool((4, 0.79)))
    with pytest.raises(Saturated, match="system saturated, sheddable request dropped") as refusal:
        shed(-1, lambda: pool((5, 0.0)))
    assert (refusal.value.status, refusal.value.reason) == (429, "rejected-saturated")


def test_an_empty_pool_is_not_a_full_one() -> None:
    def nobody() -> Candidates:
        raise NoEndpoint("nobody")

    with pytest.raises(NoEndpoint):
        shed(-1, nobody)


LOADS = st.tuples(st.none() | st.integers(0, 10_000), st.none() | st.floats(0, 1))


@given(st.lists(LOADS, max_size=8), st.randoms(use_true_random=False))
def test_saturation_is_finite_and_does_not_depend_on_order(loads: list[Numbers], chance) -> None:
    shuffled = list(loads)
    chance.shuffle(shuffled)
    assert 0.0 <= saturation(pool(*loads)) < float("inf")
    assert saturation(pool(*shuffled)) == pytest.approx(saturation(pool(*loads)))
