"""Details of the stream that no gateway shows every day; each was once changed without a notice."""

from collections.abc import Sequence

import pytest

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.request import replies
from epp.request.actions import Finish
from epp.request.intake import BodyIntake, ByteBudget
from epp.request.stream import Stream
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import RecordingProgress, route

TO = "10.0.0.1:8000"


class Kind(RecordingProgress):
    """Remembers whether the answer was said to be a stream of events."""

    streaming: bool | None = None

    def response_headers(
        self, status: int, served: str | None, *, streaming: bool = False
    ) -> Sequence[tuple[str, str]]:
        self.streaming = streaming
        return ()


def _posted(response_mode: int = pb.NONE) -> Stream:
    """A stream that waits for its decision."""
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(response_mode=response_mode))
    stream.receive(envoy.request_body(b"{}", end=True))
    return stream


@pytest.mark.parametrize(("over", "status"), [(0, None), (1, 413)])
def test_without_a_word_of_the_operator_a_body_may_have_ten_mebibytes(
    over: int, status: int | None
) -> None:
    stream = Stream(budget=ByteBudget(2**30), new_id=lambda: "id")
    length = {":path": "/x", ":method": "POST", "content-length": str(10_485_760 + over)}
    actions = stream.receive(envoy.request_headers(length))
    statuses = [reply.immediate_response.status.code for reply in envoy.replies_in(actions)]
    assert statuses == ([] if status is None else [status])


def test_an_answer_that_begins_with_its_trailers_makes_the_decision_too_late() -> None:
    stream = _posted()
    progress = RecordingProgress()
    assert envoy.kinds(envoy.sent(stream.receive(envoy.response_trailers()))) == [
        "response_trailers"
    ]
    assert stream.decided(route(TO, progress=progress)) == ()
    assert progress.events == [("reset", False)]


def test_a_subset_hint_counts_when_it_comes_with_the_trailers() -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers())
    trailers = pb.ProcessingRequest.FromString(envoy.request_trailers())
    envoy.hint(trailers, [TO])
    assert envoy.arrival_in(stream.receive(trailers.SerializeToString())).subset == (TO,)


@pytest.mark.parametrize(
    ("mode", "shown"), [(pb.NONE, False), (pb.BUFFERED, True), (pb.FULL_DUPLEX_STREAMED, True)]
)
def test_the_director_hears_whether_it_will_see_the_answers_body(mode: int, shown: bool) -> None:
    stream = envoy.a_stream()
    actions = stream.receive(envoy.request_headers(end=True, response_mode=mode))
    assert envoy.arrival_in(actions).answer_shown is shown


@pytest.mark.parametrize(
    ("content_type", "streaming"),
    [
        ("text/event-stream", True),
        ("text/event-stream; charset=utf-8", True),
        ("application/json", False),
        ("", False),
    ],
)
def test_an_answer_of_events_is_told_as_a_stream(content_type: str, streaming: bool) -> None:
    stream, progress = _posted(), Kind()
    stream.decided(route(TO, progress=progress))
    headers = envoy.headers_of({":status": "200", "content-type": content_type})
    stream.receive(
        pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=headers)).SerializeToString()
    )
    assert progress.streaming is streaming


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_no_empty_piece_follows_a_body_that_just_fills_its_pieces(over: int) -> None:
    body = b"x" * (2 * protocol.MAX_BODY_PIECE + over)
    said = map(
        pb.ProcessingResponse.FromString, replies.pieces(replies.REQUEST_BODY, body, end=True)
    )
    pieces = envoy.streamed(list(said), "request_body")
    assert len(pieces) == (3 if over > 0 else 2)
    assert all(piece.body for piece in pieces)
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_body_that_is_refused_is_let_go_at_once_and_altogether() -> None:
    budget = ByteBudget(10)
    for limit in (8, 100):
        body = BodyIntake(limit, budget)
        assert body.add(b"x" * 7) is None
        assert body.add(b"x" * 4) is not None
        assert (body.held, budget.used, body.whole()) == (0, 0, b"")


def test_a_gateway_that_showed_the_end_of_an_answer_alone_may_end_its_stream() -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.response_trailers())
    assert stream.half_closed() == (Finish(),)
