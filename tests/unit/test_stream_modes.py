"""What each mode of a request's body asks of a stream, and the modes that none can serve."""

import pytest

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.request.actions import Abort, Code, Finish
from epp.request.intake import ByteBudget
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import RecordingProgress, route

TO = "10.0.0.1:8000"
HELD = pytest.mark.parametrize("mode", [pb.BUFFERED, pb.BUFFERED_PARTIAL])
SERVED = [pb.NONE, pb.STREAMED, pb.BUFFERED, pb.BUFFERED_PARTIAL, pb.FULL_DUPLEX_STREAMED]
EVERY = pytest.mark.parametrize("mode", SERVED)


def test_a_gateway_that_keeps_the_body_gets_its_decision_at_the_headers() -> None:
    stream = envoy.a_stream()
    first = envoy.request_headers({"content-length": "10"}, request_mode=pb.NONE)
    arrival = envoy.arrival_in(stream.receive(first))
    assert (arrival.has_body, arrival.body_hidden) == (False, True)
    assert envoy.kinds(envoy.sent(stream.decided(route(TO, body=b"other")))) == ["request_headers"]
    assert envoy.kinds(envoy.sent(stream.receive(envoy.request_trailers()))) == ["request_trailers"]


def test_trailers_that_come_while_we_decide_are_answered_with_the_decision() -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(request_mode=pb.NONE))
    assert stream.receive(envoy.request_trailers()) == ()
    replies = envoy.sent(stream.decided(route(TO)))
    assert envoy.kinds(replies) == ["request_headers", "request_trailers"]


@HELD
def test_a_held_body_is_answered_in_one_body_reply(mode: int) -> None:
    stream = envoy.a_stream()
    first = envoy.sent(stream.receive(envoy.request_headers(request_mode=mode)))
    assert envoy.kinds(first) == ["request_headers"]
    assert not first[0].request_headers.HasField("response")
    arrival = envoy.arrival_in(stream.receive(envoy.request_body(b"abc", end=True)))
    assert (arrival.body, arrival.has_body, arrival.body_hidden) == (b"abc", True, False)
    (reply,) = envoy.sent(stream.decided(route(TO)))
    common = reply.request_body.response
    assert envoy.set_in(common.header_mutation)[protocol.DESTINATION] == TO
    assert not common.HasField("body_mutation")
    assert envoy.kinds(envoy.sent(stream.receive(envoy.request_trailers()))) == ["request_trailers"]


@HELD
def test_a_held_body_can_be_replaced(mode: int) -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(request_mode=mode))
    stream.receive(envoy.request_body(b"abc", end=True))
    (reply,) = envoy.sent(stream.decided(route(TO, body=b"longer")))
    common = reply.request_body.response
    assert common.body_mutation.body == b"longer"
    assert "content-length" in common.header_mutation.remove_headers


@EVERY
def test_a_request_without_a_body_is_answered_at_its_headers(mode: int) -> None:
    stream = envoy.a_stream()
    arrival = envoy.arrival_in(stream.receive(envoy.request_headers(request_mode=mode, end=True)))
    assert (arrival.has_body, arrival.body_hidden) == (False, False)
    assert envoy.kinds(envoy.sent(stream.decided(route(TO)))) == ["request_headers"]


def test_a_buffered_body_that_trailers_follow_comes_whole_without_its_end() -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(request_mode=pb.BUFFERED))
    assert envoy.arrival_in(stream.receive(envoy.request_body(b"abc"))).body == b"abc"


@HELD
def test_trailers_after_an_empty_body_leave_no_message_to_route_with(mode: int) -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(request_mode=mode))
    reply, finish = stream.receive(envoy.request_trailers())
    assert finish == Finish("bad-request")
    assert envoy.sent([reply])[0].immediate_response.status.code == 400


def test_a_body_that_outgrows_the_gateways_buffer_is_decided_as_if_it_was_not_shown() -> None:
    budget = ByteBudget(100)
    stream = envoy.a_stream(budget=budget)
    stream.receive(envoy.request_headers(request_mode=pb.BUFFERED_PARTIAL))
    arrival = envoy.arrival_in(stream.receive(envoy.request_body(b"the beginning")))
    assert (arrival.body, arrival.has_body, arrival.body_hidden) == (b"", False, True)
    assert budget.used == 0
    (reply,) = envoy.sent(stream.decided(route(TO, body=b"another")))
    common = reply.request_body.response
    assert envoy.set_in(common.header_mutation)[protocol.DESTINATION] == TO
    assert "content-length" not in common.header_mutation.remove_headers
    assert not common.HasField("body_mutation"), "the rest would follow it"
    assert stream.receive(envoy.request_body(b"never comes", end=True)) == ()
    assert envoy.kinds(envoy.sent(stream.receive(envoy.request_trailers()))) == ["request_trailers"]


def test_a_piecewise_body_is_decided_at_the_headers_and_let_through() -> None:
    stream = envoy.a_stream()
    first = envoy.request_headers({"content-length": "9" * 15}, request_mode=pb.STREAMED)
    arrival = envoy.arrival_in(stream.receive(first))
    assert (arrival.has_body, arrival.body_hidden) == (False, True)
    assert envoy.kinds(envoy.sent(stream.decided(route(TO)))) == ["request_headers"]
    for end in (False, True):
        (reply,) = envoy.sent(stream.receive(envoy.request_body(b"x" * 100_000, end=end)))
        assert reply == pb.ProcessingResponse(request_body=pb.BodyResponse())
    assert stream.budget.used == 0
    assert envoy.kinds(envoy.sent(stream.receive(envoy.request_trailers()))) == ["request_trailers"]


def test_pieces_that_do_not_wait_for_the_decision_are_answered_after_it() -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(request_mode=pb.STREAMED))
    for end in (False, True):
        assert stream.receive(envoy.request_body(b"piece", end=end)) == ()
    stream.receive(envoy.request_trailers())
    replies = envoy.sent(stream.decided(route(TO)))
    expected = ["request_headers", "request_body", "request_body", "request_trailers"]
    assert envoy.kinds(replies) == expected


def test_pieces_of_a_request_that_the_gateway_answered_itself_are_nobodys() -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(request_mode=pb.STREAMED))
    stream.receive(envoy.response_headers("504"))
    assert stream.receive(envoy.request_body(b"piece", end=True)) == ()


@pytest.mark.parametrize("response", [False, True])
@pytest.mark.parametrize(("mode", "name"), [(pb.GRPC, "GRPC"), (77, "77")])
def test_a_mode_that_nobody_can_serve_is_refused_by_name(
    mode: int, name: str, response: bool
) -> None:
    stream = envoy.a_stream()
    first = (
        envoy.request_headers(response_mode=mode)
        if response
        else envoy.request_headers(request_mode=mode)
    )
    field = "response_body_mode" if response else "request_body_mode"
    assert stream.receive(first) == (
        Abort(Code.INVALID_ARGUMENT, f"{field} {name} is not supported: use FULL_DUPLEX_STREAMED"),
    )
    progress = RecordingProgress()
    assert stream.decided(route(TO, progress=progress)) == ()
    assert progress.events == [("reset", False)]


@pytest.mark.parametrize("response", SERVED)
@EVERY
def test_every_other_pair_is_served(mode: int, response: int) -> None:
    stream = envoy.a_stream()
    first = envoy.request_headers(end=True, request_mode=mode, response_mode=response)
    assert not envoy.arrival_in(stream.receive(first)).has_body
