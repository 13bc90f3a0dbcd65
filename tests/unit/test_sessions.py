"""Sessions that stay with their endpoint: by a token of ours, or by the client's own name."""

import base64
from dataclasses import replace
from typing import Any

import pytest

from epp.errors import PluginError
from epp.framework import (
    Candidates,
    Decision,
    Endpoint,
    Follower,
    Marker,
    Request,
    Rung,
    Stage,
    Watcher,
    sessions,
)
from epp.framework.registry import build_scorer
from tests.fakes.endpoints import endpoint


def _endpoint(name: str, port: int = 8000) -> Endpoint:
    return endpoint(f"ns/{name}", port=port)


A, B, C = POOL = [_endpoint(name) for name in "abc"]


def _request(at: float = 0.0, number: int = 0, session: str = "", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(id=f"r{number}", api="c", path="/", headers=named, at=at, session=session)


def _rows(keeper: Any, request: Request, pool: list[Endpoint] = POOL) -> list[int]:
    scores = list(keeper.score(request, Candidates.of(pool)))
    assert set(scores) <= {0.0, 1.0}
    return [row for row, score in enumerate(scores) if score]


def _route(
    keeper: Any, request: Request, chosen: Endpoint, prefill: Endpoint | None = None
) -> None:
    assert isinstance(keeper, Watcher)
    keeper.chosen(
        request,
        Decision(
            request_id=request.id,
            chosen=(chosen,),
            rung=Rung.PRECISE,
            reasons=(),
            profile="decode",
            prefilling=Stage() if prefill is None else Stage(chosen=(prefill,), profile="prefill"),
        ),
    )


def _marks(keeper: Any, request: Request, served: Endpoint) -> dict[str, str]:
    assert isinstance(keeper, Marker)
    return dict(keeper.marks(request, served))


def _by_token(**parameters: Any) -> Any:
    return build_scorer("session-affinity-scorer", parameters)


def _by_name(**settings: Any) -> Any:
    return build_scorer(
        "session-affinity-scorer", {"strategy": "session_id", "sessionIdConfig": settings}
    )


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# Tokens


def test_an_answer_names_who_served_and_the_next_request_goes_there() -> None:
    keeper = _by_token()
    first = _request()
    assert _rows(keeper, first) == []
    _route(keeper, first, A)
    marks = _marks(keeper, first, B)
    assert marks == {"x-session-token": _encoded("ns/b:8000")}
    assert _rows(keeper, _request(x_session_token=marks["x-session-token"])) == [1]


def test_a_token_of_the_reference_fits_every_port_of_the_pod() -> None:
    ranks = [_endpoint("a", 8000), _endpoint("a", 8001), _endpoint("b", 8000)]
    keeper = _by_token()
    assert _rows(keeper, _request(x_session_token=_encoded("ns/a")), ranks) == [0, 1]
    assert _rows(keeper, _request(x_session_token=_encoded("ns/a:8001")), ranks) == [1]


def test_the_header_can_have_another_name() -> None:
    keeper = _by_token(encodedEndpointHeaderConfig={"header": " X-Mine "})
    assert _marks(keeper, _request(), A) == {"x-mine": _encoded("ns/a:8000")}
    assert _rows(keeper, _request(x_mine=_encoded("ns/a:8000"))) == [0]


@pytest.mark.parametrize(
    "token",
    ["", "%%%", "AAA", _encoded("ns/gone:8000"), _encoded(":8000"), _encoded("ns/a:99999999"),
     base64.b64encode(b"\xff\xfe").decode(), _encoded("ns/a" + "/" * 2000), "ns/a:8000", "ü"],
)  # fmt: skip
def test_a_token_that_names_no_candidate_is_ignored(token: str) -> None:
    assert _rows(_by_token(), _request(x_session_token=token)) == []


def test_a_prefill_token_is_given_only_where_somebody_else_computed_the_prompt() -> None:
    keeper = _by_token(
        profileName="prefill", encodedEndpointHeaderConfig={"header": "x-session-token-prefill"}
    )
    split, whole = _request(number=1), _request(number=2)
    _route(keeper, split, A, prefill=C)
    _route(keeper, whole, A)
    assert _marks(keeper, split, A) == {"x-session-token-prefill": _encoded("ns/c:8000")}
    assert _marks(keeper, whole, A) == {}
    decode = _by_token(profileName="decode")
    _route(decode, split, A, prefill=C)
    assert _marks(decode, split, A) == {"x-session-token": _encoded("ns/a:8000")}


# Names


def test_a_session_stays_with_its_endpoint_and_nothing_is_told_to_the_client() -> None:
    keeper = _by_name()
    first = _request(x_session_id="s")
    assert _rows(keeper, first) == []
    _route(keeper, first, B)
    assert _marks(keeper, first, B) == {}
    assert _rows(keeper, first) == [1]
    assert _rows(keeper, _request(x_session_id="other")) == []
    assert _rows(keeper, _request()) == []


def test_a_session_does_not_move_for_one_request_that_went_elsewhere() -> None:
    keeper = _by_name()
    asked = _request(x_session_id="s")
    _route(keeper, asked, B)
    assert _rows(keeper, asked) == [1]
    _route(keeper, asked, C)
    assert _rows(keeper, asked) == [1]


def test_a_session_moves_when_its_endpoint_is_no_candidate() -> None:
    keeper = _by_name()
    asked = _request(x_session_id="s")
    _route(keeper, asked, B)
    assert _rows(keeper, asked, [A, C]) == []
    _route(keeper, asked, C)
    assert _rows(keeper, asked) == [2]


def test_a_silent_session_is_forgotten_and_one_that_goes_on_is_not() -> None:
    keeper = _by_name(evictionTtlSeconds=60)
    _route(keeper, _request(0.0, x_session_id="silent"), A)
    _route(keeper, _request(0.0, x_session_id="goes-on"), B)
    _route(keeper, _request(50.0, x_session_id="goes-on"), B)
    assert _rows(keeper, _request(60.0, x_session_id="silent")) == [0]
    assert _rows(keeper, _request(61.0, x_session_id="silent")) == []
    assert _rows(keeper, _request(100.0, x_session_id="goes-on")) == [1]
    _route(keeper, _request(105.0, x_session_id="new"), C)
    assert len(keeper._bound) == 2


def test_the_first_source_that_is_there_counts() -> None:
    keeper = _by_name(
        sources=[{"header": "x-one"}, {"attribute": "SessionIDDataKey"}, {"header": "x-two"}]
    )
    _route(keeper, _request(x_two="s"), A)
    _route(keeper, _request(session="t", x_two="s"), B)
    assert _rows(keeper, _request(x_one=" ", x_two="s")) == [0]
    assert _rows(keeper, _request(session="t", x_two="s")) == [1]
    assert _rows(keeper, _request(x_one="t")) == [1]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)
    monkeypatch.setattr(sessions, "MAX_REQUESTS", 3)
    by_name, by_token = _by_name(), _by_token(profileName="prefill")
    for number in range(10):
        asked = _request(number=number, x_session_id=f"s{number}")
        _route(by_name, asked, A)
        _route(by_token, asked, A, prefill=B)
    known = [n for n in range(10) if _rows(by_name, _request(x_session_id=f"s{n}"))]
    assert known == [7, 8, 9]
    for number in known * 2:
        _rows(by_name, replace(_request(x_session_id=f"s{number}"), id=f"away{number}"), [C])
    assert len(by_name._away) == len(by_token._tokens) == 3
    assert _marks(by_token, _request(number=0), A) == {}
    assert _marks(by_token, _request(number=9), A) != {}
    assert len(by_token._tokens) == 2


def test_the_session_that_was_silent_longest_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    keeper = _by_name()
    for name in ("one", "two", "one", "three"):
        _route(keeper, _request(x_session_id=name), A)
    known = [name for name in ("one", "two", "three") if _rows(keeper, _request(x_session_id=name))]
    assert known == ["one", "three"]


def test_a_session_of_a_stage_that_did_not_run_is_not_remembered() -> None:
    keeper = build_scorer(
        "session-affinity-scorer", {"strategy": "session_id", "profileName": "prefill"}
    )
    asked = _request(x_session_id="s")
    _route(keeper, asked, A)
    assert _rows(keeper, asked) == []
    _route(keeper, asked, A, prefill=C)
    assert _rows(keeper, asked) == [2]


def test_nothing_is_left_of_a_request_that_was_routed() -> None:
    keeper = _by_name()
    asked = _request(x_session_id="s")
    _route(keeper, asked, B)
    assert _rows(keeper, asked, [A]) == []
    assert len(keeper._away) == 1
    _route(keeper, asked, A)
    assert len(keeper._away) == 0


def _serve(keeper: Any, request: Request, chosen: Endpoint, served: Endpoint) -> None:
    assert isinstance(keeper, Follower)
    keeper.served(request, chosen, served)


def test_a_session_follows_to_who_served_in_place_of_the_chosen() -> None:
    keeper = _by_name()
    asked = _request(x_session_id="s")
    _route(keeper, asked, A)
    _serve(keeper, asked, A, C)
    assert _rows(keeper, _request(number=1, x_session_id="s")) == [2]


def test_a_request_that_was_not_to_go_to_its_sessions_endpoint_moves_nothing() -> None:
    keeper = _by_name()
    _route(keeper, _request(x_session_id="s"), A)
    aside = _request(number=1, x_session_id="s")
    _route(keeper, aside, B)
    _serve(keeper, aside, B, C)
    assert _rows(keeper, _request(number=2, x_session_id="s")) == [0]


def test_who_served_says_nothing_of_requests_without_a_session_and_of_tokens() -> None:
    for keeper, asked in ((_by_name(), _request()), (_by_token(), _request(x_session_id="s"))):
        _route(keeper, asked, A)
        _serve(keeper, asked, A, B)
        assert len(keeper._bound) == 0


def test_a_session_of_the_prefills_stays_when_another_endpoint_answers() -> None:
    keeper = build_scorer(
        "session-affinity-scorer", {"strategy": "session_id", "profileName": "prefill"}
    )
    asked = _request(x_session_id="s")
    _route(keeper, asked, A, prefill=B)
    _serve(keeper, asked, A, C)
    assert _rows(keeper, _request(number=1, x_session_id="s")) == [1]


def test_by_default_a_session_is_remembered_for_five_minutes() -> None:
    keeper = build_scorer("session-affinity-scorer", {"strategy": "session_id"})
    _route(keeper, _request(0.0, x_session_id="s"), A)
    assert _rows(keeper, _request(300.0, x_session_id="s")) == [0]
    assert _rows(keeper, _request(300.5, x_session_id="s")) == []


def test_ports_of_five_digits_are_read() -> None:
    far = _endpoint("a", 65535)
    token = _marks(_by_token(), _request(), far)["x-session-token"]
    assert _rows(_by_token(), _request(x_session_token=token), [A, far]) == [1]


def test_a_sessions_name_is_not_kept() -> None:
    keeper = _by_name()
    _route(keeper, _request(x_session_id="a-canary-of-the-client"), A)
    assert "canary" not in repr(vars(keeper))


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"strategy": "cookie"}, "strategy"),
        ({"encodedEndpointHeaderConfig": {"header": ":path"}}, "must be the name of a header"),
        ({"encodedEndpointHeaderConfig": {"header": ""}}, "must be the name of a header"),
        ({"encodedEndpointHeaderConfig": {"name": "x"}}, r"encodedEndpointHeaderConfig\.name"),
        ({"sessionIdConfig": {"sources": []}}, "must name one"),
        ({"sessionIdConfig": {"sources": [{}]}}, "exactly one"),
        ({"sessionIdConfig": {"sources": [{"header": "a", "attribute": "b"}]}}, "exactly one"),
        ({"sessionIdConfig": {"sources": [{"attribute": "b"}]}}, "SessionIDDataKey"),
        ({"sessionIdConfig": {"sources": [{"header": "a b"}]}}, "must be the name of a header"),
        ({"sessionIdConfig": {"evictionTtlSeconds": 0}}, "above 0"),
        ({"sessionIdConfig": {"evictionSweepSeconds": -1}}, "above 0"),
    ],
)
def test_faulty_parameters_are_refused(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(PluginError, match=said):
        build_scorer("session-affinity-scorer", parameters)
