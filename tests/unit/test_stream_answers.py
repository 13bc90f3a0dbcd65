"""The answer's half of an ext_proc stream."""

import pytest

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.request.actions import Abort, Finish
from epp.request.stream import Stream
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import RecordingProgress, route

FDS = pb.FULL_DUPLEX_STREAMED
TO = "10.0.0.1:8000"


def _routed(progress: RecordingProgress, *, response_mode: int = FDS) -> Stream:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(end=True, response_mode=response_mode))
    stream.decided(route(TO, progress=progress))
    return stream


def test_each_piece_of_an_answer_is_passed_on_at_once() -> None:
    progress = RecordingProgress()
    stream = _routed(progress)
    assert envoy.kinds(envoy.sent(stream.receive(envoy.response_headers()))) == ["response_headers"]
    for data, end in ((b"data: 1\n\n", False), (b"\xff\x00not json", False), (b"", True)):
        replies = envoy.sent(stream.receive(envoy.response_body(data, end=end)))
        (piece,) = envoy.streamed(replies, "response_body")
        assert (piece.body, piece.end_of_stream) == (data, end)
    assert progress.events == [
        ("headers", 200, None),
        ("body", 9),
        ("body", 10),
        ("finished",),
    ]


def test_a_piece_of_an_answer_is_only_cut_above_the_limit() -> None:
    stream = _routed(RecordingProgress())
    limit = protocol.MAX_BODY_PIECE
    body = bytes(range(256)) * 600
    replies = envoy.sent(stream.receive(envoy.response_body(body, end=True)))
    pieces = envoy.streamed(replies, "response_body")
    assert [len(piece.body) for piece in pieces] == [limit, limit, len(body) - 2 * limit]
    assert [piece.end_of_stream for piece in pieces] == [False, False, True]
    assert b"".join(piece.body for piece in pieces) == body
    whole = envoy.sent(stream.receive(envoy.response_body(b"x" * limit)))
    assert len(whole) == 1


def test_an_answer_that_ends_in_trailers_is_finished_by_them() -> None:
    progress = RecordingProgress()
    stream = _routed(progress)
    stream.receive(envoy.response_headers())
    stream.receive(envoy.response_body(b"x"))
    assert progress.ends == []
    replies = envoy.sent(stream.receive(envoy.response_trailers()))
    assert envoy.kinds(replies) == ["response_trailers"]
    assert progress.ends == [("finished",)]


def test_an_answer_without_a_body_is_finished_by_its_headers() -> None:
    progress = RecordingProgress()
    stream = _routed(progress, response_mode=pb.NONE)
    stream.receive(envoy.response_headers("204", end=True))
    assert progress.events == [("headers", 204, None), ("finished",)]


def test_an_answer_is_finished_only_once() -> None:
    progress = RecordingProgress()
    stream = _routed(progress)
    stream.receive(envoy.response_headers())
    stream.receive(envoy.response_body(b"x", end=True))
    stream.receive(envoy.response_trailers())
    stream.receive(envoy.response_body(b"", end=True))
    stream.closed()
    assert progress.ends == [("finished",)]


def test_a_stream_that_ends_after_the_headers_may_still_be_answering() -> None:
    progress = RecordingProgress()
    stream = _routed(progress, response_mode=pb.NONE)
    stream.receive(envoy.response_headers())
    stream.closed()
    assert progress.events == [("headers", 200, None), ("reset", True)]


def test_the_gateway_says_who_truly_served() -> None:
    progress = RecordingProgress()
    _routed(progress).receive(envoy.response_headers(served="10.0.0.2:8000"))
    assert progress.events == [("headers", 200, "10.0.0.2:8000")]


def test_metadata_without_a_served_endpoint_says_nothing() -> None:
    progress = RecordingProgress()
    stream = _routed(progress)
    message = pb.ProcessingRequest.FromString(envoy.response_headers())
    message.metadata_context.filter_metadata[protocol.LB_NAMESPACE].update({"other": "x"})
    stream.receive(message.SerializeToString())
    assert progress.events == [("headers", 200, "")]


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [(":status", "503", 503), ("status", "404", 404), (":status", "20x", 0), ("x-other", "1", 0)],
)
def test_the_status_is_read_from_either_name(name: str, value: str, status: int) -> None:
    progress = RecordingProgress()
    _routed(progress).receive(envoy.response_headers(value, name=name))
    assert progress.events == [("headers", status, None)]


def test_headers_that_come_twice_are_answered_twice_and_told_once() -> None:
    progress = RecordingProgress()
    stream = _routed(progress)
    for _ in range(2):
        replies = envoy.sent(stream.receive(envoy.response_headers()))
        assert envoy.kinds(replies) == ["response_headers"]
    assert progress.events == [("headers", 200, None)]


@pytest.mark.parametrize("mode", [pb.STREAMED, pb.BUFFERED, pb.BUFFERED_PARTIAL])
def test_an_answer_in_another_mode_is_let_through(mode: int) -> None:
    progress = RecordingProgress()
    stream = _routed(progress, response_mode=mode)
    stream.receive(envoy.response_headers())
    (reply,) = envoy.sent(stream.receive(envoy.response_body(b"x", end=True)))
    assert reply.WhichOneof("response") == "response_body"
    assert not reply.response_body.response.HasField("body_mutation")
    assert progress.ends == [("finished",)]


def test_an_answer_without_a_request_is_let_through() -> None:
    stream = envoy.a_stream()
    message = pb.ProcessingRequest.FromString(envoy.response_headers())
    message.protocol_config.response_body_mode = FDS
    replies = envoy.sent(stream.receive(message.SerializeToString()))
    replies += envoy.sent(stream.receive(envoy.response_body(b"x")))
    replies += envoy.sent(stream.receive(envoy.response_trailers()))
    assert envoy.kinds(replies) == ["response_headers", "response_body", "response_trailers"]
    assert stream.half_closed() == (Finish(),)


@pytest.mark.parametrize("collected", [False, True])
def test_a_gateway_that_answers_by_itself_makes_the_decision_too_late(collected: bool) -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(response_mode=FDS))
    stream.receive(envoy.request_body(b"x", end=collected))
    used = stream.budget.used
    replies = envoy.sent(stream.receive(envoy.response_headers("504")))
    replies += envoy.sent(stream.receive(envoy.response_body(b"late", end=True)))
    assert envoy.kinds(replies) == ["response_headers", "response_body"]
    assert (used, stream.budget.used) == (1, 0)
    assert stream.receive(envoy.request_body(b"y", end=True)) == ()
    assert stream.receive(envoy.request_trailers()) == ()
    progress = RecordingProgress()
    assert stream.decided(route(TO, progress=progress)) == ()
    assert progress.events == [("reset", False)]
    assert stream.half_closed() == (Finish(),)


@pytest.mark.parametrize("begin", [envoy.response_body(b"late"), envoy.response_trailers()])
def test_an_answer_that_begins_without_headers_makes_the_decision_too_late_as_well(
    begin: bytes,
) -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(response_mode=FDS))
    stream.receive(envoy.request_body(b"x", end=True))
    assert len(envoy.sent(stream.receive(begin))) == 1
    assert stream.budget.used == 0
    assert stream.decided(route(TO)) == ()


def test_headers_that_the_route_wants_in_its_answer_are_set() -> None:
    progress = RecordingProgress()
    progress.answer_headers = (("x-served", TO), ("x-bad", "a\r\nb"), ("connection", "close"))
    stream = _routed(progress, response_mode=pb.NONE)
    (reply,) = envoy.sent(stream.receive(envoy.response_headers("204", end=True)))
    mutation = reply.response_headers.response.header_mutation
    assert envoy.set_in(mutation) == {"x-served": TO}
    assert progress.ends == [("finished",)]


@pytest.mark.parametrize("name", [*protocol.ROUTING_HEADERS, *protocol.GATEWAY_HEADERS])
def test_an_engine_cannot_speak_for_the_picker(name: str) -> None:
    progress = RecordingProgress()
    progress.answer_headers = ((name, "ours"),)
    stream = _routed(progress)
    theirs = [(name.title(), "theirs"), ("x-request-id", "kept")]
    for first in (True, False):
        (reply,) = envoy.sent(stream.receive(envoy.response_headers(more=theirs)))
        mutation = reply.response_headers.response.header_mutation
        assert list(mutation.remove_headers) == [name]
        assert envoy.set_in(mutation) == ({name: "ours"} if first else {})


def test_hop_by_hop_headers_of_an_answer_are_never_copied() -> None:
    stream = _routed(RecordingProgress())
    message = pb.ProcessingRequest(
        response_headers=pb.HttpHeaders(
            headers=envoy.headers_of(dict.fromkeys(protocol.HOP_BY_HOP_HEADERS, "x"))
        )
    )
    (reply,) = envoy.sent(stream.receive(message.SerializeToString()))
    assert not reply.response_headers.HasField("response")


def test_a_broken_message_in_the_middle_of_an_answer_resets_the_route() -> None:
    progress = RecordingProgress()
    stream = _routed(progress)
    stream.receive(envoy.response_headers())
    (abort,) = stream.receive(b"\x07")
    assert isinstance(abort, Abort)
    assert progress.ends == [("reset", True)]
