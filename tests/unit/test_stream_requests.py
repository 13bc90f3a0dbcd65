"""The request's half of an ext_proc stream."""

import json

import pytest

from epp import protocol
from epp.errors import BadRequest, ModelNotFound, NoEndpoint, Refusal, Saturated
from epp.request.actions import Abort, Code, Decide, Finish
from epp.request.intake import ByteBudget
from epp.request.stream import Stream
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import RecordingProgress, route

TO = "10.0.0.1:8000"
LIMIT = protocol.MAX_BODY_PIECE


def test_a_request_that_ends_with_its_headers_gets_one_reply() -> None:
    stream = envoy.a_stream()
    arrival = envoy.arrival_in(stream.receive(envoy.GET))
    assert (arrival.path, arrival.method, arrival.has_body) == ("/v1/models", "GET", False)
    assert not arrival.body_hidden
    replies = envoy.sent(stream.decided(route(TO)))
    assert envoy.kinds(replies) == ["request_headers"]


def test_a_streamed_body_is_collected_and_answered_after_the_headers() -> None:
    stream = envoy.a_stream()
    assert stream.receive(envoy.request_headers()) == ()
    assert stream.receive(envoy.request_body(b"hello ")) == ()
    assert stream.receive(envoy.request_body(b"world")) == ()
    arrival = envoy.arrival_in(stream.receive(envoy.request_body(end=True)))
    assert (arrival.body, arrival.has_body) == (b"hello world", True)
    replies = envoy.sent(stream.decided(route(TO)))
    assert envoy.kinds(replies) == ["request_headers", "request_body"]
    (piece,) = envoy.streamed(replies, "request_body")
    assert (piece.body, piece.end_of_stream) == (b"hello world", True)


@pytest.mark.parametrize(
    ("size", "count"),
    [(0, 1), (1, 1), (LIMIT - 1000, 1), (LIMIT, 1), (LIMIT + 1, 2), (2 * LIMIT + 1000, 3)],
)
def test_a_body_leaves_in_pieces_that_every_gateway_takes(size: int, count: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    stream = _decidable(body[:size])
    pieces = envoy.streamed(envoy.sent(stream.decided(route(TO))), "request_body")
    assert len(pieces) == count
    assert b"".join(piece.body for piece in pieces) == body[:size]
    assert all(len(piece.body) <= LIMIT for piece in pieces)
    assert [piece.end_of_stream for piece in pieces] == [False] * (count - 1) + [True]


def test_trailers_end_a_body_and_are_answered_after_it() -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers())
    stream.receive(envoy.request_body(b"abc"))
    arrival = envoy.arrival_in(stream.receive(envoy.request_trailers()))
    assert (arrival.body, arrival.has_body) == (b"abc", True)
    replies = envoy.sent(stream.decided(route(TO)))
    assert envoy.kinds(replies) == ["request_headers", "request_body", "request_trailers"]
    assert not envoy.streamed(replies, "request_body")[0].end_of_stream


def test_a_second_end_of_the_body_changes_nothing() -> None:
    stream = _decidable(b"abc")
    assert stream.receive(envoy.request_body(b"abc", end=True)) == ()
    pieces = envoy.streamed(envoy.sent(stream.decided(route(TO))), "request_body")
    assert [piece.body for piece in pieces] == [b"abc"]
    assert stream.receive(envoy.request_body(b"abc", end=True)) == ()


def test_a_decision_is_the_same_in_the_header_and_in_the_metadata() -> None:
    (reply, _) = envoy.sent(_decidable(b"x").decided(route("10.0.0.1:8000,[::1]:9")))
    mutation = reply.request_headers.response.header_mutation
    metadata = reply.dynamic_metadata.fields[protocol.LB_NAMESPACE].struct_value.fields
    assert envoy.set_in(mutation)[protocol.DESTINATION] == "10.0.0.1:8000,[::1]:9"
    assert metadata[protocol.DESTINATION].string_value == "10.0.0.1:8000,[::1]:9"
    assert len(reply.dynamic_metadata.fields) == len(metadata) == 1


def test_headers_that_steer_are_always_removed() -> None:
    outcome = route(TO, set_headers=(("x-model", "m"),), remove_headers=("x-secret", "not a name"))
    (reply, _) = envoy.sent(_decidable(b"x").decided(outcome))
    mutation = reply.request_headers.response.header_mutation
    assert list(mutation.remove_headers) == [
        *protocol.ROUTING_HEADERS,
        *protocol.GATEWAY_HEADERS,
        "x-secret",
    ]
    assert envoy.set_in(mutation) == {
        protocol.DESTINATION: TO,
        protocol.REQUEST_ID: "made-up-id",
        "x-model": "m",
    }


def test_a_request_keeps_its_own_id() -> None:
    stream = envoy.a_stream()
    arrival = envoy.arrival_in(
        stream.receive(envoy.request_headers({"x-request-id": "theirs"}, end=True))
    )
    assert arrival.headers["x-request-id"] == "theirs"
    (reply,) = envoy.sent(stream.decided(route(TO)))
    mutation = reply.request_headers.response.header_mutation
    assert envoy.set_in(mutation) == {protocol.DESTINATION: TO}


def test_a_request_without_an_id_is_given_one_that_the_director_sees() -> None:
    stream = envoy.a_stream(new_id="fresh")
    arrival = envoy.arrival_in(stream.receive(envoy.request_headers(end=True)))
    assert arrival.headers["x-request-id"] == "fresh"


@pytest.mark.parametrize(
    "header",
    [
        ("x-bad", "a\r\nx-evil: 1"),
        ("x-bad", "caf\u00e9"),
        ("x-bad", "\x00"),
        ("x-bad", "y" * 4097),
        ("x-bad", ""),
        ("X-Upper", "v"),
        ("x bad", "v"),
        (":path", "/elsewhere"),
        ("host", "elsewhere"),
        ("content-length", "3"),
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        (protocol.DESTINATION, "1.2.3.4:5"),
    ],
)
def test_a_header_that_could_spoil_the_request_is_left_out(header: tuple[str, str]) -> None:
    outcome = route(TO, set_headers=(header, ("x-good", "y" * 4096)))
    (reply, _) = envoy.sent(_decidable(b"x").decided(outcome))
    mutation = reply.request_headers.response.header_mutation
    assert set(envoy.set_in(mutation)) == {protocol.DESTINATION, protocol.REQUEST_ID, "x-good"}
    assert envoy.set_in(mutation)[protocol.DESTINATION] == TO


@pytest.mark.parametrize("body", [b"shorter", b"a body that is longer", b""])
def test_a_changed_body_loses_its_declared_length(body: bytes) -> None:
    (reply, *rest) = envoy.sent(_decidable(b"0123456789").decided(route(TO, body=body)))
    assert "content-length" in reply.request_headers.response.header_mutation.remove_headers
    assert envoy.streamed(rest, "request_body")[0].body == body


@pytest.mark.parametrize("body", [None, b"9876543210"])
def test_a_body_of_the_same_length_keeps_it(body: bytes | None) -> None:
    (reply, _) = envoy.sent(_decidable(b"0123456789").decided(route(TO, body=body)))
    assert "content-length" not in reply.request_headers.response.header_mutation.remove_headers


def test_a_decision_that_names_nobody_leaves_the_choice_to_the_gateway() -> None:
    """Neither header nor metadata, and nothing of what a client said of a destination."""
    reply, body = envoy.sent(_decidable(b"x").decided(route(None, set_headers=(("x-a", "b"),))))
    mutation = reply.request_headers.response.header_mutation
    assert protocol.DESTINATION not in envoy.set_in(mutation)
    assert envoy.set_in(mutation)["x-a"] == "b"
    assert set(protocol.ROUTING_HEADERS) <= set(mutation.remove_headers)
    assert not reply.HasField("dynamic_metadata")
    assert envoy.streamed([body], "request_body")[0].body == b"x"


@pytest.mark.parametrize("destination", ["", "10.0.0.1:80\r\nx: y", "x" * 4097])
def test_a_decision_without_a_usable_destination_is_our_own_fault(destination: str) -> None:
    progress = RecordingProgress()
    stream = _decidable(b"x")
    (abort,) = stream.decided(route(destination, progress=progress))
    assert isinstance(abort, Abort)
    assert abort.code is Code.UNAVAILABLE
    assert progress.events == [("reset", False)]


def test_a_refusal_is_an_answer_in_the_shape_that_clients_know() -> None:
    reply, finish = _decidable(b"x").decided(NoEndpoint('nobody is "ready"'))
    assert finish == Finish("rejected-no-endpoints")
    (message,) = envoy.sent([reply])
    immediate = message.immediate_response
    assert immediate.status.code == 503
    assert immediate.details == "rejected-no-endpoints"
    assert envoy.set_in(immediate.headers) == {
        "content-type": "application/json",
        protocol.DROP_REASON: "rejected-no-endpoints",
        "retry-after": "1",
    }
    assert json.loads(immediate.body) == {
        "error": {
            "message": 'inference error: ServiceUnavailable - nobody is "ready"',
            "type": "service_unavailable",
            "param": None,
            "code": "rejected-no-endpoints",
        }
    }


@pytest.mark.parametrize(
    ("refusal", "told"),
    [(Saturated, True), (NoEndpoint, True), (BadRequest, False), (ModelNotFound, False)],
)
def test_whoever_may_succeed_later_is_told_when_to_come_back(
    refusal: type[Refusal], told: bool
) -> None:
    (reply, _) = _decidable(b"x").decided(refusal("no"))
    immediate = envoy.sent([reply])[0].immediate_response
    assert envoy.set_in(immediate.headers).get("retry-after") == ("1" if told else None)
    wanted = f"inference error: {refusal.code} - no"
    assert json.loads(immediate.body)["error"]["message"] == wanted


def test_nothing_is_said_after_a_refusal() -> None:
    stream = _decidable(b"x")
    stream.decided(BadRequest("no"))
    assert stream.receive(envoy.request_body(b"more", end=True)) == ()
    assert stream.receive(envoy.response_headers()) == ()


def test_a_tunnel_is_refused_because_it_has_no_end_to_wait_for() -> None:
    reply, finish = envoy.a_stream().receive(envoy.request_headers({":method": "CONNECT"}))
    assert finish == Finish("bad-request")
    assert envoy.sent([reply])[0].immediate_response.status.code == 400


def test_a_body_at_the_limit_passes() -> None:
    stream = envoy.a_stream(limit=10)
    stream.receive(envoy.request_headers({"content-length": "10"}))
    stream.receive(envoy.request_body(b"12345"))
    assert envoy.arrival_in(stream.receive(envoy.request_body(b"67890", end=True))).body


def test_a_body_over_the_limit_is_refused_and_let_go() -> None:
    budget = ByteBudget(100)
    stream = envoy.a_stream(limit=10, budget=budget)
    stream.receive(envoy.request_headers())
    stream.receive(envoy.request_body(b"1234567890"))
    assert budget.used == 10
    reply, finish = stream.receive(envoy.request_body(b"x"))
    assert finish == Finish("too-large")
    assert envoy.sent([reply])[0].immediate_response.status.code == 413
    assert budget.used == 0


@pytest.mark.parametrize("length", ["11", "1000000000000", "9" * 5000, "0" * 30 + "11"])
def test_a_body_that_declares_too_much_is_refused_at_its_headers(length: str) -> None:
    stream = envoy.a_stream(limit=10)
    reply, finish = stream.receive(envoy.request_headers({"content-length": length}))
    assert finish == Finish("too-large")
    assert envoy.sent([reply])[0].immediate_response.status.code == 413


@pytest.mark.parametrize("length", ["10", "", "ten", "-1", "\u00b2", "0" * 30 + "10"])
def test_a_declared_length_that_says_nothing_bad_is_no_reason_to_refuse(length: str) -> None:
    assert envoy.a_stream(limit=10).receive(envoy.request_headers({"content-length": length})) == ()


def test_all_streams_together_hold_no_more_than_the_budget() -> None:
    budget = ByteBudget(15)
    first = envoy.a_stream(limit=10, budget=budget)
    second = envoy.a_stream(limit=10, budget=budget)
    for stream in (first, second):
        stream.receive(envoy.request_headers())
    first.receive(envoy.request_body(b"1234567890", end=True))
    assert second.receive(envoy.request_body(b"12345")) == ()
    reply, _ = second.receive(envoy.request_body(b"6"))
    assert envoy.sent([reply])[0].immediate_response.status.code == 413
    assert budget.used == 10
    first.decided(route(TO))
    assert budget.used == 10, "the replies still hold the body"
    first.written()
    assert budget.used == 0
    first.closed()
    assert budget.used == 0


def test_a_body_is_waited_for_only_while_it_comes_in_pieces() -> None:
    stream = envoy.a_stream()
    assert stream.collected is None
    stream.receive(envoy.request_headers())
    assert stream.collected == 0
    stream.receive(envoy.request_body(b"abc"))
    assert stream.collected == 3
    stream.receive(envoy.request_body(end=True))
    assert stream.collected is None


def test_a_body_that_comes_too_slowly_is_refused_and_let_go() -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers())
    stream.receive(envoy.request_body(b"abc"))
    reply, finish = stream.stalled()
    assert finish == Finish("request-timeout")
    assert envoy.sent([reply])[0].immediate_response.status.code == 408
    assert stream.budget.used == 0


@pytest.mark.parametrize("missing", [":path", ":method"])
@pytest.mark.parametrize("left", [[], [""]])
def test_a_request_without_a_path_or_a_method_is_refused(missing: str, left: list[str]) -> None:
    pairs = [(name, "x") for name in (":path", ":method") if name != missing]
    first = envoy.request_headers([*pairs, *((missing, value) for value in left)])
    reply, finish = envoy.a_stream().receive(first)
    assert finish == Finish("bad-request")
    assert envoy.sent([reply])[0].immediate_response.status.code == 400


def test_writing_before_the_decision_lets_nothing_go() -> None:
    budget = ByteBudget(100)
    stream = envoy.a_stream(budget=budget)
    stream.receive(envoy.request_headers())
    stream.receive(envoy.request_body(b"abc"))
    stream.written()
    assert budget.used == 3
    assert envoy.arrival_in(stream.receive(envoy.request_body(end=True))).body == b"abc"


@pytest.mark.parametrize(
    "messages",
    [
        [b"\xff\xff\xff"],
        [envoy.request_body(b"x")],
        [envoy.request_trailers()],
        [envoy.request_headers(), envoy.request_headers()],
    ],
)
def test_a_stream_against_the_protocol_is_aborted(messages: list[bytes]) -> None:
    stream = envoy.a_stream()
    for message in messages[:-1]:
        stream.receive(message)
    (abort,) = stream.receive(messages[-1])
    assert isinstance(abort, Abort)
    assert abort.code is Code.INVALID_ARGUMENT
    assert stream.receive(envoy.request_headers()) == ()


def test_a_message_without_content_is_ignored() -> None:
    assert envoy.a_stream().receive(b"") == ()


@pytest.mark.parametrize("messages", [[], [envoy.request_headers()]])
def test_a_stream_that_ends_before_its_request_never_ends_well(messages: list[bytes]) -> None:
    stream = envoy.a_stream()
    for message in messages:
        stream.receive(message)
    (abort,) = stream.half_closed()
    assert isinstance(abort, Abort)
    assert abort.code is Code.CANCELLED


def test_a_caller_that_only_listens_still_gets_its_decision() -> None:
    stream = _decidable(b"x")
    assert stream.half_closed() == ()
    *replies, finish = stream.decided(route(TO))
    assert envoy.kinds(envoy.sent(replies)) == ["request_headers", "request_body"]
    assert finish == Finish()
    assert stream.half_closed() == (Finish(),)


def test_a_decision_that_comes_after_the_end_gives_back_what_it_took() -> None:
    stream = _decidable(b"x")
    stream.closed()
    progress = RecordingProgress()
    assert stream.decided(route(TO, progress=progress)) == ()
    assert progress.events == [("reset", False)]
    assert stream.decided(NoEndpoint("too late as well")) == ()


def test_a_stream_that_dies_before_the_answer_resets_the_route() -> None:
    stream = _decidable(b"x")
    progress = RecordingProgress()
    stream.decided(route(TO, progress=progress))
    stream.closed()
    stream.closed()
    assert progress.events == [("reset", False)]


def _decidable(body: bytes) -> Stream:
    """A stream whose decision is out, with `body` collected."""
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers())
    (decide,) = stream.receive(envoy.request_body(body, end=True))
    assert isinstance(decide, Decide)
    return stream
