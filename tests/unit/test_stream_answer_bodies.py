"""What an answer's body says of its cost, and the model's name put back into it, by its mode."""

from dataclasses import replace

import pytest

from epp._pb import extproc_pb2 as pb
from epp.bodies.usage import Usage
from epp.request.exchange import ModelName
from epp.request.stream import Stream
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import RecordingProgress, route

FDS = pb.FULL_DUPLEX_STREAMED
NAME = ModelName(asked="chat", served="org/internal-chat")
JSON = [("content-type", "application/json"), ("content-length", "99")]
EVENTS = [("content-type", "text/event-stream")]
ANSWER = (
    b'{"model":"org/internal-chat","x":"org/internal-chat",'
    b'"usage":{"prompt_tokens":7,"completion_tokens":3}}'
)
SHOWN = ANSWER.replace(b'"model":"org/internal-chat"', b'"model":"chat"')
USED = ("usage", Usage(prompt_tokens=7, completion_tokens=3))
WHOLE = pytest.mark.parametrize("mode", [pb.STREAMED, pb.BUFFERED, pb.BUFFERED_PARTIAL, FDS])


def _routed(
    mode: int, *, progress: RecordingProgress | None = None, model: ModelName | None = NAME
) -> Stream:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(end=True, response_mode=mode))
    stream.decided(replace(route("10.0.0.1:80", progress=progress), model=model))
    return stream


def _headers(stream: Stream, more: list[tuple[str, str]]) -> pb.HeaderMutation:
    (reply,) = envoy.sent(stream.receive(envoy.response_headers(more=more)))
    return reply.response_headers.response.header_mutation


def _shown(stream: Stream, mode: int, pieces: list[bytes], *, end: bool = True) -> bytes:
    """What the client sees of these pieces after their replies."""
    shown = b""
    for number, piece in enumerate(pieces, 1):
        message = envoy.response_body(piece, end=end and number == len(pieces))
        replies = envoy.sent(stream.receive(message))
        if mode == FDS:
            shown += b"".join(part.body for part in envoy.streamed(replies, "response_body"))
            continue
        (reply,) = replies
        mutation = reply.response_body.response.body_mutation
        shown += mutation.body if mutation.WhichOneof("mutation") else piece
    return shown


@WHOLE
def test_the_cost_of_a_whole_answer_is_told_right_before_its_end(mode: int) -> None:
    progress = RecordingProgress()
    stream = _routed(mode, progress=progress, model=None)
    assert _headers(stream, JSON) == pb.HeaderMutation()
    assert _shown(stream, mode, [ANSWER]) == ANSWER
    body = ("body", len(ANSWER))
    assert progress.events == [("headers", 200, None), body, USED, ("finished",)]


@pytest.mark.parametrize("mode", [pb.STREAMED, FDS])
def test_the_cost_of_a_streamed_answer_is_found_wherever_its_pieces_end(mode: int) -> None:
    answer = (
        b'data: {"choices":[]}\r\n\r\ndata: {"usage":{"prompt_tokens":7,"completion_tokens":3}}'
    )
    answer += b"\r\n\r\ndata: [DONE]\r\n\r\n"
    progress = RecordingProgress()
    stream = _routed(mode, progress=progress, model=None)
    _headers(stream, EVENTS)
    pieces = [answer[at : at + 7] for at in range(0, len(answer), 7)]
    assert _shown(stream, mode, pieces) == answer
    assert progress.events[-2:] == [USED, ("finished",)]


def test_trailers_end_an_answer_whose_cost_is_known() -> None:
    progress = RecordingProgress()
    stream = _routed(FDS, progress=progress)
    _headers(stream, JSON)
    assert _shown(stream, FDS, [ANSWER], end=False) == SHOWN
    assert envoy.kinds(envoy.sent(stream.receive(envoy.response_trailers()))) == [
        "response_trailers"
    ]
    assert progress.events[-2:] == [USED, ("finished",)]


def test_a_buffered_answer_is_whole_though_trailers_follow_it() -> None:
    progress = RecordingProgress()
    stream = _routed(pb.BUFFERED, progress=progress)
    _headers(stream, JSON)
    assert _shown(stream, pb.BUFFERED, [ANSWER], end=False) == SHOWN
    assert progress.events[-2:] == [USED, ("finished",)]


@pytest.mark.parametrize(
    "headers",
    [
        [("content-type", "application/json"), ("content-encoding", "gzip")],
        [("content-type", "audio/wav")],
        [],
    ],
)
@WHOLE
def test_a_body_that_is_not_for_us_to_read_passes_as_it_is(
    mode: int, headers: list[tuple[str, str]]
) -> None:
    progress = RecordingProgress()
    stream = _routed(mode, progress=progress)
    assert _headers(stream, headers) == pb.HeaderMutation()
    assert _shown(stream, mode, [ANSWER]) == ANSWER
    assert progress.events[-2:] == [("body", len(ANSWER)), ("finished",)]


@pytest.mark.parametrize(
    "usage", [b'"oops"', b"null", b"[]", b'{"prompt_tokens":"7"}', b'{"prompt_tokens":-7}']
)
def test_a_cost_that_makes_no_sense_is_not_told(usage: bytes) -> None:
    progress = RecordingProgress()
    stream = _routed(FDS, progress=progress)
    _headers(stream, JSON)
    _shown(stream, FDS, [b'{"usage":' + usage + b"}"])
    assert [event[0] for event in progress.events] == ["headers", "body", "finished"]


@WHOLE
def test_the_name_that_the_client_knows_is_put_back_and_nothing_else(mode: int) -> None:
    stream = _routed(mode)
    streamed = mode in (pb.STREAMED, FDS)
    removed = ["content-length"] if streamed else []
    assert list(_headers(stream, JSON).remove_headers) == removed
    if streamed:
        pieces = [ANSWER[at : at + 3] for at in range(0, len(ANSWER), 3)]
        assert _shown(stream, mode, pieces) == SHOWN
        return
    (reply,) = envoy.sent(stream.receive(envoy.response_body(ANSWER, end=True)))
    common = reply.response_body.response
    assert common.body_mutation.body == SHOWN
    assert list(common.header_mutation.remove_headers) == ["content-length"]


@pytest.mark.parametrize("mode", [pb.BUFFERED, pb.BUFFERED_PARTIAL])
def test_a_name_of_equal_length_leaves_the_declared_length(mode: int) -> None:
    stream = _routed(mode, model=ModelName(asked="chat", served="CHAT"))
    _headers(stream, JSON)
    (reply,) = envoy.sent(stream.receive(envoy.response_body(b'{"model":"CHAT"}', end=True)))
    common = reply.response_body.response
    assert common.body_mutation.body == b'{"model":"chat"}'
    assert common.header_mutation == pb.HeaderMutation()


@pytest.mark.parametrize("mode", [pb.STREAMED, FDS])
def test_every_event_gets_the_name_and_none_waits_for_another(mode: int) -> None:
    stream = _routed(mode)
    _headers(stream, EVENTS)
    for number in range(5):
        event = b'data: {"id":%d,"model":"org/internal-chat"}\n\n' % number
        assert _shown(stream, mode, [event], end=False) == event.replace(
            b"org/internal-chat", b"chat"
        )


def test_the_beginning_of_an_answer_whose_rest_is_not_shown_stays_as_it_is() -> None:
    progress = RecordingProgress()
    stream = _routed(pb.BUFFERED_PARTIAL, progress=progress)
    _headers(stream, JSON)
    (reply,) = envoy.sent(stream.receive(envoy.response_body(ANSWER)))
    assert reply == pb.ProcessingResponse(response_body=pb.BodyResponse())
    stream.closed()
    assert progress.events[-2:] == [("body", len(ANSWER)), ("reset", True)]


def test_a_piece_of_which_nothing_can_be_passed_on_yet_has_no_reply_of_its_own() -> None:
    stream = _routed(FDS)
    _headers(stream, JSON)
    assert _shown(stream, FDS, [b"{"], end=False) == b"{"
    assert stream.receive(envoy.response_body(b'"mod')) == []
    assert _shown(stream, FDS, [b'el":"org/internal-chat"}']) == b'"model":"chat"}'


def test_an_answer_that_breaks_off_loses_no_byte() -> None:
    for last in (envoy.response_body(b"", end=True), envoy.response_trailers()):
        stream = _routed(FDS)
        _headers(stream, JSON)
        assert _shown(stream, FDS, [b'{"model":"org/int'], end=False) == b'{"model":'
        replies = envoy.sent(stream.receive(last))
        pieces = envoy.streamed(replies, "response_body")
        assert [piece.body for piece in pieces] == [b'"org/int']
        assert pieces[0].end_of_stream == (len(replies) == 1)


def test_trailers_have_one_reply_where_pieces_are_answered_one_by_one() -> None:
    stream = _routed(pb.STREAMED)
    _headers(stream, JSON)
    _shown(stream, pb.STREAMED, [b'{"model":"org/int'], end=False)
    replies = envoy.sent(stream.receive(envoy.response_trailers()))
    assert envoy.kinds(replies) == ["response_trailers"]


def test_pieces_after_the_end_are_passed_on_and_told_to_nobody() -> None:
    progress = RecordingProgress()
    stream = _routed(FDS, progress=progress)
    _headers(stream, JSON)
    _shown(stream, FDS, [ANSWER])
    told = list(progress.events)
    assert _shown(stream, FDS, [ANSWER]) == ANSWER
    assert progress.events == told


def test_a_body_without_headers_is_let_through() -> None:
    progress = RecordingProgress()
    stream = _routed(FDS, progress=progress)
    assert _shown(stream, FDS, [ANSWER]) == ANSWER
    assert progress.events == [("body", len(ANSWER)), ("finished",)]
    other = RecordingProgress()
    stream = _routed(pb.STREAMED, progress=other)
    stream.receive(envoy.response_body(b"x"))
    stream.closed()
    assert other.ends == [("reset", True)]
