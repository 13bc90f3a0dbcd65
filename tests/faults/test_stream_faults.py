"""Field faults of the ext_proc protocol that need no gateway to show."""

import json
from dataclasses import replace
from itertools import permutations

import pytest

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.errors import BadRequest
from epp.request.actions import Decide, Finish
from epp.request.exchange import ModelName
from epp.request.intake import ByteBudget
from epp.request.stream import Stream
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import RecordingProgress, route

TO = "10.0.0.1:8000"


def _decidable(body: bytes = b"{}", *, response_mode: int = pb.NONE) -> Stream:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(response_mode=response_mode))
    (decide,) = stream.receive(envoy.request_body(body, end=True))
    assert isinstance(decide, Decide)
    return stream


def test_A01_no_reply_is_larger_than_gateways_take() -> None:
    """Protected by `replies.pieces`; red when it returns the body as one piece."""
    body = bytes(range(256)) * (3_900_000 // 256)
    actions = _decidable(body, response_mode=pb.FULL_DUPLEX_STREAMED).decided(route(TO))
    assert all(len(action.data) <= 64 * 1024 for action in actions if hasattr(action, "data"))
    pieces = envoy.streamed(envoy.sent(actions), "request_body")
    assert b"".join(piece.body for piece in pieces) == body
    assert [piece.end_of_stream for piece in pieces].index(True) == len(pieces) - 1


def test_A02_a_request_without_a_body_gets_exactly_one_reply() -> None:
    """Protected by `Stream._on_request_headers`; red when it waits for a body all the same."""
    stream = envoy.a_stream()
    envoy.arrival_in(stream.receive(envoy.request_headers(end=True)))
    assert envoy.kinds(envoy.sent(stream.decided(route(TO)))) == ["request_headers"]


@pytest.mark.parametrize(("new", "removed"), [(b"longer than", True), (b"s", True), (b"{}", False)])
def test_A04_a_changed_length_takes_its_header_with_it(new: bytes, removed: bool) -> None:
    """Protected by `new_length` in `Stream._route_replies`; red when that is always False."""
    (reply, *_) = envoy.sent(_decidable(b"{}").decided(route(TO, body=new)))
    mutation = reply.request_headers.response.header_mutation
    assert ("content-length" in mutation.remove_headers) is removed
    assert "content-length" not in envoy.set_in(mutation)


def test_A05_hop_by_hop_headers_are_never_set_or_echoed() -> None:
    """Protected by `_NEVER_SET` in replies; red when it is empty."""
    hop = tuple((name, "x") for name in protocol.HOP_BY_HOP_HEADERS)
    stream = _decidable()
    (reply, _) = envoy.sent(stream.decided(route(TO, set_headers=hop)))
    assert not set(envoy.set_in(reply.request_headers.response.header_mutation)) & set(
        protocol.HOP_BY_HOP_HEADERS
    )
    answer = pb.ProcessingRequest(
        response_headers=pb.HttpHeaders(headers=envoy.headers_of(hop))
    ).SerializeToString()
    (echoed,) = envoy.sent(stream.receive(answer))
    assert echoed.response_headers == pb.HeadersResponse()


def test_A08_a_bad_request_is_told_in_json_that_clients_understand() -> None:
    """Protected by `replies.refusal`; red when the content type is not set."""
    reply = envoy.replies_in(_decidable(b'{"model":').decided(BadRequest("invalid JSON")))[0]
    immediate = reply.immediate_response
    assert immediate.status.code == 400
    assert envoy.set_in(immediate.headers)["content-type"] == "application/json"
    assert {"message", "type", "code"} <= set(json.loads(immediate.body)["error"])


@pytest.mark.parametrize("mode", [pb.STREAMED, pb.FULL_DUPLEX_STREAMED])
def test_A12_every_event_carries_the_name_that_the_client_asked_for(mode: int) -> None:
    """Protected by `Answer._open_body`; red when it makes no `Rename`."""
    stream = _decidable(response_mode=mode)
    model = ModelName(asked="chat", served="org/internal")
    stream.decided(replace(route(TO), model=model))
    stream.receive(envoy.response_headers(more=[("content-type", "text/event-stream")]))
    event = b'data: {"model":"org/internal","choices":[]}\n\n'
    shown = b""
    for piece in [event, event[:20], event[20:], event]:
        for reply in envoy.sent(stream.receive(envoy.response_body(piece))):
            mutation = reply.response_body.response.body_mutation
            shown += mutation.streamed_response.body or mutation.body
    assert shown == event.replace(b"org/internal", b"chat") * 3


def test_A12_the_beginning_of_an_answer_is_not_renamed_alone() -> None:
    """Protected by `Answer.body`; red when a part of an answer is renamed like a whole one."""
    stream = _decidable(response_mode=pb.BUFFERED_PARTIAL)
    stream.decided(replace(route(TO), model=ModelName(asked="chat", served="org/internal")))
    stream.receive(envoy.response_headers(more=[("content-type", "text/event-stream")]))
    event = b'data: {"model":"org/internal","choices":[]}\n\n'
    (reply,) = envoy.sent(stream.receive(envoy.response_body(event)))
    assert not reply.response_body.response.HasField("body_mutation")


def test_A15_a_compressed_answer_passes_as_it_is() -> None:
    """Protected by the encoding that `intake.answer_head` reads; red when it is not passed on."""
    progress = RecordingProgress()
    stream = _decidable(response_mode=pb.FULL_DUPLEX_STREAMED)
    model = ModelName(asked="chat", served="org/internal")
    stream.decided(replace(route(TO, progress=progress), model=model))
    headers = [("content-type", "application/json"), ("content-encoding", "gzip")]
    (reply,) = envoy.sent(stream.receive(envoy.response_headers(more=headers)))
    assert reply.response_headers == pb.HeadersResponse(), "its length stays declared"
    # Bytes that would be read as text if nobody looked at the encoding.
    body = b'{"model":"org/internal","usage":{"prompt_tokens":7}}'
    (piece,) = envoy.streamed(
        envoy.sent(stream.receive(envoy.response_body(body, end=True))), "response_body"
    )
    assert piece.body == body
    assert [event[0] for event in progress.events] == ["headers", "body", "finished"]


def test_A22_value_and_raw_value_make_the_same_decision() -> None:
    """Protected by `intake._text`; red when it reads `raw_value` alone."""
    pairs = {":path": "/v1/completions", ":method": "POST"}
    arrivals = []
    for headers in (
        [pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in pairs.items()],
        [pb.HeaderValue(key=key, value=value) for key, value in pairs.items()],
    ):
        message = pb.ProcessingRequest(
            request_headers=pb.HttpHeaders(
                headers=pb.HeaderMap(headers=headers), end_of_stream=True
            )
        )
        stream = envoy.a_stream()
        arrivals.append(envoy.arrival_in(stream.receive(message.SerializeToString())))
        (reply,) = envoy.sent(stream.decided(route(TO)))
        assert envoy.set_in(reply.request_headers.response.header_mutation)
    assert arrivals[0] == arrivals[1]


@pytest.mark.parametrize("mode", [pb.NONE, pb.STREAMED, pb.FULL_DUPLEX_STREAMED])
def test_A24_an_answer_that_ends_at_its_headers_is_finished(mode: int) -> None:
    """Protected by `Answer.headers`; red when it waits for a body all the same."""
    progress = RecordingProgress()
    stream = _decidable(response_mode=mode)
    stream.decided(route(TO, progress=progress))
    stream.receive(envoy.response_headers("204", end=True))
    assert progress.ends == [("finished",)]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_A25_every_order_of_ends_finishes_once(order: tuple[int, ...]) -> None:
    """Protected by `Stream._finished` and `closed`; red when they keep the progress."""
    progress = RecordingProgress()
    stream = _decidable(response_mode=pb.FULL_DUPLEX_STREAMED)
    stream.decided(route(TO, progress=progress))
    stream.receive(envoy.response_headers())
    ends = (
        lambda: stream.receive(envoy.response_body(b"[DONE]", end=True)),
        lambda: stream.receive(envoy.response_trailers()),
        stream.closed,
    )
    for index in order:
        ends[index]()
    stream.closed()
    assert len(progress.ends) == 1
    assert progress.ends[0] == (("reset", True) if order[0] == 2 else ("finished",))


def test_A28_header_and_metadata_agree_over_many_requests() -> None:
    """Protected by `replies.routing`; red when the metadata is built from anything else."""
    for number in range(100):
        destination = ",".join(f"10.0.{number}.{entry}:8000" for entry in range(1 + number % 3))
        (reply, _) = envoy.sent(_decidable().decided(route(destination)))
        space = reply.dynamic_metadata.fields[protocol.LB_NAMESPACE].struct_value
        mutation = reply.request_headers.response.header_mutation
        assert space.fields[protocol.DESTINATION].string_value == destination
        assert envoy.set_in(mutation)[protocol.DESTINATION] == destination


def test_A29_one_header_reply_comes_first_and_keeps_the_route() -> None:
    """Protected by `Stream._route_replies`; red when the body goes first."""
    stream = envoy.a_stream()
    said = list(stream.receive(envoy.request_headers()))
    said += stream.receive(envoy.request_body(b"x" * 200_000))
    assert said == []
    stream.receive(envoy.request_body(end=True))
    replies = envoy.sent(stream.decided(route(TO)))
    assert envoy.kinds(replies) == ["request_headers"] + ["request_body"] * 4
    assert not replies[0].request_headers.response.clear_route_cache


@pytest.mark.parametrize("name", [*protocol.ROUTING_HEADERS, *protocol.GATEWAY_HEADERS])
def test_G02_no_header_that_steers_passes_either_way(name: str) -> None:
    """Protected by `_REMOVE_ROUTING` for requests and `intake._OWNED` for answers; red when either
    leaves one out."""
    stream = _decidable()
    (reply, _) = envoy.sent(stream.decided(route(TO)))
    assert name in reply.request_headers.response.header_mutation.remove_headers
    theirs = [(name.upper(), "10.0.0.9:1")]
    (reply,) = envoy.sent(stream.receive(envoy.response_headers(more=theirs)))
    assert name in reply.response_headers.response.header_mutation.remove_headers


@pytest.mark.parametrize("missing", [":path", ":method"])
def test_G16_a_request_without_a_pseudo_header_is_told_so(missing: str) -> None:
    """Protected by `Stream._unfit`; red when it asks for neither."""
    pairs = [(name, "x") for name in (":path", ":method") if name != missing]
    reply, finish = envoy.a_stream().receive(envoy.request_headers(pairs, end=True))
    assert finish == Finish("bad-request")
    assert envoy.sent([reply])[0].immediate_response.status.code == 400


def test_G16_lengths_inside_a_body_are_nobodys_business() -> None:
    """Protected by `BodyIntake.add`, which counts the bytes that came; red when it does not."""
    framed = b"\x00\xff\xff\xff\xff" + b"x"
    budget = ByteBudget(100)
    stream = envoy.a_stream(budget=budget)
    stream.receive(envoy.request_headers({"content-type": "application/grpc"}))
    stream.receive(envoy.request_body(framed))
    assert budget.used == len(framed)
    arrival = envoy.arrival_in(stream.receive(envoy.request_body(end=True)))
    assert arrival.body == framed
    stream.closed()  # cancelled between two messages
    assert budget.used == 0
