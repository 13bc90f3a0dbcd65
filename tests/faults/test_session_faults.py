"""Fault B18: what a client's session header says is a hint, whatever it says."""

import base64
from random import Random
from typing import Any

import pytest

from epp.framework import Candidates, Decision, Endpoint, Request, Rung, samples
from epp.framework.registry import Kind, find

_MAKE = Random(1)
POOL = [samples.endpoint(_MAKE, number) for number in range(4)]
GONE = samples.endpoint(_MAKE, 9)


def _request(headers: dict[str, str]) -> Request:
    return Request(id="r", api="c", path="/", headers=headers)


def _token(text: bytes) -> str:
    return base64.b64encode(text).decode()


def _plugin(kind: Kind, **parameters: Any) -> Any:
    found = find(f"session-affinity-{kind.value}")
    assert found is not None
    return found.build(parameters)


HINTS = [
    "%%% no base64 %%%",
    "AAAAA",
    _token(b"\xff\xfe\xfd"),
    _token(f"{GONE.id.name}:{GONE.id.port}".encode()),
    _token(GONE.address.encode()),
    _token(b"169.254.169.254:80"),
    "A" * 100_000,
]


@pytest.mark.parametrize("hint", HINTS, ids=range(len(HINTS)))
def test_B18_a_hint_that_names_no_candidate_changes_nothing(hint: str) -> None:
    """Protected by the narrow reading of tokens; red when what is no token raises."""
    asked, pool = _request({"x-session-token": hint}), Candidates.of(POOL)
    assert not any(_plugin(Kind.SCORER).score(asked, pool))
    assert all(_plugin(Kind.FILTER).keep(asked, pool))


def test_B18_a_token_of_a_pod_outside_the_subset_does_not_bring_it_back() -> None:
    """Protected by the filter that keeps everybody then; red when it keeps nobody."""
    inside, outside = POOL[:2], POOL[2]
    asked = _request({"x-session-token": _token(f"{outside.id.name}:{outside.id.port}".encode())})
    assert list(_plugin(Kind.FILTER).keep(asked, Candidates.of(inside))) == [True, True]
    assert list(_plugin(Kind.FILTER).keep(asked, Candidates.of(POOL))) == [
        False,
        False,
        True,
        False,
    ]


def _chosen(plugin: Any, asked: Request, endpoint: Endpoint) -> None:
    plugin.chosen(
        asked,
        Decision(request_id=asked.id, chosen=(endpoint,), rung=Rung.PRECISE, reasons=()),
    )


def test_B18_a_session_whose_pod_is_gone_moves_to_where_its_next_request_goes() -> None:
    """Protected by the note that the pod was no candidate; red when a session never moves."""
    plugin = _plugin(Kind.FILTER, strategy="session_id")
    asked = _request({"x-session-id": "one"})
    _chosen(plugin, asked, GONE)
    assert all(plugin.keep(asked, Candidates.of(POOL)))
    _chosen(plugin, asked, POOL[1])
    assert list(plugin.keep(asked, Candidates.of(POOL))) == [False, True, False, False]


def test_B18_a_session_goes_on_where_its_request_was_truly_served() -> None:
    """Protected by the binding that follows a gateway's fallback; red when it stays with a pod that
    has computed nothing of the session."""
    plugin = _plugin(Kind.FILTER, strategy="session_id")
    asked = _request({"x-session-id": "one"})
    _chosen(plugin, asked, POOL[0])
    plugin.served(asked, POOL[0], POOL[2])
    assert list(plugin.keep(asked, Candidates.of(POOL))) == [False, False, True, False]
