"""Membership, lives and readiness."""

import pytest

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.endpoints import NOT_READY_BELIEVED_S, Changes, Endpoints, Member

POOL = PoolId("p")
A, B = EndpointId(POOL, "a", 1), EndpointId(POOL, "b", 1)


def member(endpoint: EndpointId, address: str = "10.0.0.1:1") -> Member:
    return Member(id=endpoint, address=address)


@pytest.fixture
def endpoints() -> Endpoints:
    out = Endpoints()
    out.replace([member(A), member(B)], 0.0)
    return out


def ready(endpoints: Endpoints, now: float = 0.0) -> list[str]:
    return sorted(m.id.name for m, _ in endpoints.ready(now))


def test_a_member_never_heard_from_is_routable(endpoints: Endpoints) -> None:
    assert ready(endpoints) == ["a", "b"]
    assert endpoints.incarnation(A) == Incarnation(A, 0)


def test_replace_says_what_changed(endpoints: Endpoints) -> None:
    endpoints.born(B, 7, 0.0)
    c = EndpointId(POOL, "c", 1)
    changes = endpoints.replace([member(A, "10.0.0.9:1"), member(c)], 1.0)
    assert [m.id for m in changes.added] == [c]
    assert changes.removed == (Incarnation(B, 7),)
    assert [m.id for m in changes.changed] == [A]
    assert endpoints.replace([member(A, "10.0.0.9:1"), member(c)], 2.0) == Changes()
    assert not Changes()
    assert endpoints.incarnation(B) is None
    assert B not in endpoints
    assert len(endpoints) == 2


def test_the_later_start_wins_and_an_earlier_one_is_ignored(endpoints: Endpoints) -> None:
    assert endpoints.born(A, 10, 0.0) == Incarnation(A, 10)
    assert endpoints.born(A, 9, 0.0) is None
    assert endpoints.born(A, 10, 0.0) == Incarnation(A, 10)
    assert endpoints.born(A, 11, 0.0) == Incarnation(A, 11)
    assert endpoints.incarnation(A) == Incarnation(A, 11)
    assert endpoints.born(EndpointId(POOL, "ghost", 1), 1, 0.0) is None


def test_not_ready_takes_an_endpoint_out_at_once_and_back(endpoints: Endpoints) -> None:
    endpoints.set_ready(A, False, 1.0)
    assert ready(endpoints, 1.0) == ["b"]
    assert not endpoints.is_ready(A, 1.0)
    endpoints.set_ready(A, True, 1.1)
    assert ready(endpoints, 1.1) == ["a", "b"]


def test_a_new_life_is_ready(endpoints: Endpoints) -> None:
    endpoints.set_ready(A, False, 1.0)
    endpoints.set_reachable(A, False, 1.0)
    endpoints.born(A, 5, 2.0)
    assert endpoints.is_ready(A, 2.0)


def test_a_refused_connection_takes_it_out_until_it_answers(endpoints: Endpoints) -> None:
    endpoints.set_reachable(A, False, 1.0)
    assert ready(endpoints, 100.0) == ["b"]
    endpoints.set_reachable(A, True, 101.0)
    assert ready(endpoints, 101.0) == ["a", "b"]
    endpoints.set_reachable(A, False, 102.0)
    endpoints.heard(A)
    assert ready(endpoints, 102.0) == ["a", "b"]


def test_a_silent_sidecars_not_ready_does_not_last_for_ever(endpoints: Endpoints) -> None:
    endpoints.set_ready(A, False, 1.0)
    assert not endpoints.is_ready(A, 1.0 + NOT_READY_BELIEVED_S)
    assert endpoints.is_ready(A, 1.1 + NOT_READY_BELIEVED_S)


def test_a_page_from_the_engine_ends_an_older_not_ready(endpoints: Endpoints) -> None:
    endpoints.set_ready(A, False, 1.0)
    endpoints.set_reachable(A, True, 2.0)
    assert not endpoints.is_ready(A, 2.0)
    endpoints.set_reachable(A, True, 3.5)
    assert endpoints.is_ready(A, 3.5)


def test_strangers_are_nobody(endpoints: Endpoints) -> None:
    ghost = EndpointId(POOL, "ghost", 1)
    endpoints.set_ready(ghost, False, 0.0)
    endpoints.set_reachable(ghost, False, 0.0)
    endpoints.heard(ghost)
    assert not endpoints.is_ready(ghost, 0.0)
    assert endpoints.member(ghost) is None
    assert endpoints.member(A) == member(A)
    assert [m.id for m in endpoints] == [A, B]


def test_a_new_address_forgets_what_was_said_of_the_old_one(endpoints: Endpoints) -> None:
    endpoints.set_reachable(A, False, 1.0)
    endpoints.replace([member(A, "10.0.0.9:1"), member(B)], 2.0)
    assert endpoints.is_ready(A, 2.0)
