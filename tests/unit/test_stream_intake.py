"""What a stream reads of headers and of the gateway's hint."""

import pytest

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.request.intake import AnswerHead, answer_head
from tests.fakes import extproc_messages as envoy


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["10.0.0.1:80", "10.0.0.2"], ("10.0.0.1:80", "10.0.0.2")),
        ("10.0.0.1:80, [::1]:8000", ("10.0.0.1:80", "[::1]:8000")),
        (["10.0.0.1:80,10.0.0.2:80", "10.0.0.3:80"], ("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")),
        ([], ()),
        ("", ()),
        (" , ", ()),
        (7.0, ()),
        (True, ()),
        ({"a": "10.0.0.1:80"}, ()),
        (["10.0.0.1:80", 7.0], ("10.0.0.1:80",)),
    ],
)
def test_the_subset_hint_comes_in_many_shapes_and_never_widens(
    value: object, expected: tuple[str, ...]
) -> None:
    stream = envoy.a_stream()
    arrival = envoy.arrival_in(stream.receive(envoy.request_headers(end=True, subset=value)))
    assert arrival.subset == expected


def test_the_subset_hint_counts_from_whichever_message_carries_it() -> None:
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers())
    stream.receive(envoy.request_body(b"x", subset=["10.0.0.1:80"]))
    arrival = envoy.arrival_in(stream.receive(envoy.request_body(end=True)))
    assert arrival.subset == ("10.0.0.1:80",)


def test_without_a_subset_hint_everybody_may_serve() -> None:
    message = pb.ProcessingRequest.FromString(envoy.request_headers(end=True))
    message.metadata_context.filter_metadata[protocol.SUBSET_NAMESPACE].update({"other": "x"})
    stream = envoy.a_stream()
    assert envoy.arrival_in(stream.receive(message.SerializeToString())).subset is None


def test_headers_are_read_from_either_field_and_joined() -> None:
    message = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(
            headers=pb.HeaderMap(
                headers=[
                    pb.HeaderValue(key=":path", raw_value=b"/"),
                    pb.HeaderValue(key=":method", value="GET"),
                    pb.HeaderValue(key="X-Raw", raw_value=b"caf\xe9", value="ignored"),
                    pb.HeaderValue(key="x-text", value="text"),
                    pb.HeaderValue(key="x-twice", raw_value=b"a"),
                    pb.HeaderValue(key="x-twice", raw_value=b"b"),
                ]
            ),
            end_of_stream=True,
        )
    )
    headers = envoy.arrival_in(envoy.a_stream().receive(message.SerializeToString())).headers
    assert headers["x-raw"] == "caf\xe9"
    assert headers["x-text"] == "text"
    assert headers["x-twice"] == "a,b"


def test_an_answers_headers_are_read_from_either_field() -> None:
    headers = pb.HeaderMap(
        headers=[
            pb.HeaderValue(key=":status", raw_value=b"200", value="500"),
            pb.HeaderValue(key="status", value="404"),
            pb.HeaderValue(key="Content-Type", value="text/event-stream"),
            pb.HeaderValue(key="content-encoding", raw_value=b"gzip"),
            pb.HeaderValue(key="content-encoding", raw_value=b"br"),
            pb.HeaderValue(key="X-Gateway-Destination-Endpoint", raw_value=b"10.0.0.9:1"),
            pb.HeaderValue(key=protocol.OBJECTIVE[0], raw_value=b"gold"),
            pb.HeaderValue(key="x-request-id", raw_value=b"theirs"),
        ]
    )
    assert answer_head(headers) == AnswerHead(
        status=200,
        content_type="text/event-stream",
        content_encoding="gzip,br",
        owned=(protocol.DESTINATION, protocol.OBJECTIVE[0]),
    )
    assert answer_head(pb.HeaderMap()) == AnswerHead()
