"""Hand-built bytes are what the generated code makes of the same fields."""

from hypothesis import given
from hypothesis import strategies as st

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.errors import TooLarge
from epp.request import replies
from tests.fakes.extproc_messages import set_in

HEADER_VALUE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1)


def _option(name: str, value: str) -> pb.HeaderValueOption:
    return pb.HeaderValueOption(
        header=pb.HeaderValue(key=name, raw_value=value.encode()),
        append_action=pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def _metadata(reply: pb.ProcessingResponse, destination: str) -> pb.ProcessingResponse:
    space = reply.dynamic_metadata.fields[protocol.LB_NAMESPACE].struct_value
    space.fields[protocol.DESTINATION].string_value = destination
    return reply


def test_empty_replies_are_the_generated_ones() -> None:
    for data, reply in (
        (
            replies.CONTINUE_REQUEST_HEADERS,
            pb.ProcessingResponse(request_headers=pb.HeadersResponse()),
        ),
        (
            replies.CONTINUE_RESPONSE_HEADERS,
            pb.ProcessingResponse(response_headers=pb.HeadersResponse()),
        ),
        (
            replies.CONTINUE_RESPONSE_BODY,
            pb.ProcessingResponse(response_body=pb.BodyResponse()),
        ),
        (
            replies.REQUEST_TRAILERS,
            pb.ProcessingResponse(request_trailers=pb.TrailersResponse()),
        ),
        (
            replies.RESPONSE_TRAILERS,
            pb.ProcessingResponse(response_trailers=pb.TrailersResponse()),
        ),
    ):
        assert data == reply.SerializeToString()


@given(destination=HEADER_VALUE, value=HEADER_VALUE, new_length=st.booleans())
def test_a_routing_reply_is_the_generated_one(
    destination: str, value: str, new_length: bool
) -> None:
    remove = [*protocol.ROUTING_HEADERS, "x-gone", *(["content-length"] if new_length else [])]
    common = pb.CommonResponse(
        header_mutation=pb.HeaderMutation(
            set_headers=[_option(protocol.DESTINATION, destination), _option("x-set", value)],
            remove_headers=remove,
        )
    )
    expected = _metadata(
        pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common)), destination
    )
    data = replies.routing(
        replies.REQUEST_HEADERS,
        destination,
        [("x-set", value)],
        ["x-gone"],
        new_length=new_length,
    )
    assert data == expected.SerializeToString()


@given(body=st.binary())
def test_a_routing_reply_with_a_new_body_is_the_generated_one(body: bytes) -> None:
    common = pb.CommonResponse(
        header_mutation=pb.HeaderMutation(
            set_headers=[_option(protocol.DESTINATION, "10.0.0.1:80")],
            remove_headers=protocol.ROUTING_HEADERS,
        ),
        body_mutation=pb.BodyMutation(body=body),
    )
    expected = _metadata(
        pb.ProcessingResponse(request_body=pb.BodyResponse(response=common)), "10.0.0.1:80"
    )
    data = replies.routing(
        replies.REQUEST_BODY, "10.0.0.1:80", [], [], new_length=False, new_body=body
    )
    assert data == expected.SerializeToString()


@given(size=st.integers(0, protocol.MAX_BODY_PIECE), end=st.booleans(), request=st.booleans())
def test_a_piece_is_the_generated_one(size: int, end: bool, request: bool) -> None:
    body = b"\x0a" * size
    mutation = pb.BodyMutation(
        streamed_response=pb.StreamedBodyResponse(body=body, end_of_stream=end)
    )
    inner = pb.BodyResponse(response=pb.CommonResponse(body_mutation=mutation))
    expected = (
        pb.ProcessingResponse(request_body=inner)
        if request
        else pb.ProcessingResponse(response_body=inner)
    )
    kind = replies.REQUEST_BODY if request else replies.RESPONSE_BODY
    assert replies.piece(kind, body, end=end) == expected.SerializeToString()


@given(value=st.integers(0, 2**40))
def test_a_varint_reads_back(value: int) -> None:
    number = 0
    for shift, byte in enumerate(replies.varint(value)):
        number |= (byte & 0x7F) << 7 * shift
    assert number == value


@given(name=st.text(), value=st.text())
def test_whatever_is_settable_is_printable_and_bounded(name: str, value: str) -> None:
    if replies.settable(name, value):
        assert name.isascii()
        assert name == name.lower()
        assert value.isprintable()
        assert value.isascii()
        assert 0 < len(value) <= replies.MAX_HEADER_VALUE


def test_a_refusal_sets_raw_values_only() -> None:
    reply = pb.ProcessingResponse.FromString(replies.refusal(TooLarge("too large")))
    assert set_in(reply.immediate_response.headers)["content-type"] == "application/json"
