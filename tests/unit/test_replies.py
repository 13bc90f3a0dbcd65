"""Hand-built bytes are what the generated code makes of the same fields."""

from hypothesis import given
from hypothesis import strategies as st

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.errors import TooLarge
from epp.request import replies
from tests.fakes.extproc_messages import set_in

REMOVED = (*protocol.ROUTING_HEADERS, *protocol.GATEWAY_HEADERS)
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
            replies.CONTINUE_REQUEST_BODY,
            pb.ProcessingResponse(request_body=pb.BodyResponse()),
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
    remove = [*REMOVED, "x-gone", *(["content-length"] if new_length else [])]
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


@given(value=HEADER_VALUE, body=st.none() | st.binary(), held=st.booleans())
def test_a_routing_reply_that_names_nobody_is_the_generated_one(
    value: str, body: bytes | None, held: bool
) -> None:
    """Also a client's own word for a destination is gone."""
    common = pb.CommonResponse(
        header_mutation=pb.HeaderMutation(
            set_headers=[_option("x-set", value)], remove_headers=REMOVED
        ),
        body_mutation=None if body is None else pb.BodyMutation(body=body),
    )
    expected = (
        pb.ProcessingResponse(request_body=pb.BodyResponse(response=common))
        if held
        else pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common))
    )
    reply = replies.REQUEST_BODY if held else replies.REQUEST_HEADERS
    data = replies.routing(reply, None, [("x-set", value)], [], new_length=False, new_body=body)
    assert data == expected.SerializeToString()
    assert protocol.DESTINATION in REMOVED


def test_scores_are_told_where_nobody_is_named() -> None:
    scores = (("10.0.0.1:80", 0.5),)
    data = replies.routing(replies.REQUEST_HEADERS, None, [], [], new_length=False, scores=scores)
    space = pb.ProcessingResponse.FromString(data).dynamic_metadata.fields[protocol.LB_NAMESPACE]
    assert [*space.struct_value.fields] == [protocol.DESTINATION_SCORES]


@given(body=st.binary())
def test_a_routing_reply_with_a_new_body_is_the_generated_one(body: bytes) -> None:
    common = pb.CommonResponse(
        header_mutation=pb.HeaderMutation(
            set_headers=[_option(protocol.DESTINATION, "10.0.0.1:80")],
            remove_headers=REMOVED,
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


@given(
    scores=st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=30),
        st.floats(allow_nan=False, allow_infinity=False),
        min_size=1,
        max_size=8,
    )
)
def test_scores_in_the_metadata_are_the_generated_ones(scores: dict[str, float]) -> None:
    data = replies.routing(
        replies.REQUEST_HEADERS,
        "10.0.0.1:80",
        [],
        [],
        new_length=False,
        scores=tuple(scores.items()),
    )
    plain = replies.routing(replies.REQUEST_HEADERS, "10.0.0.1:80", [], [], new_length=False)
    expected = pb.ProcessingResponse.FromString(plain)
    space = expected.dynamic_metadata.fields[protocol.LB_NAMESPACE].struct_value
    table = space.fields[protocol.DESTINATION_SCORES].struct_value
    for address, score in scores.items():
        table.fields[address].number_value = score
    assert pb.ProcessingResponse.FromString(data) == expected
    assert len(data) == expected.ByteSize()


def _scores_in(scores: list[tuple[str, float]]) -> dict[str, float]:
    data = replies.routing(
        replies.REQUEST_HEADERS, "10.0.0.1:80", [], [], new_length=False, scores=scores
    )
    reply = pb.ProcessingResponse.FromString(data)
    space = reply.dynamic_metadata.fields[protocol.LB_NAMESPACE].struct_value
    table = space.fields[protocol.DESTINATION_SCORES].struct_value
    return {address: value.number_value for address, value in table.fields.items()}


def test_a_score_that_json_cannot_say_is_left_out() -> None:
    assert _scores_in([("a:1", float("nan")), ("b:1", float("-inf")), ("c:1", 0.5)]) == {"c:1": 0.5}


def test_of_too_many_scores_the_best_are_told() -> None:
    most = replies.MAX_SCORES
    told = _scores_in([(f"10.0.{n}.1:8000", float(n)) for n in range(most + 5)])
    assert set(told.values()) == {float(n) for n in range(5, most + 5)}


@given(value=HEADER_VALUE, remove=st.lists(st.sampled_from(protocol.ROUTING_HEADERS), max_size=3))
def test_a_reply_to_an_answers_headers_is_the_generated_one(value: str, remove: list[str]) -> None:
    expected = pb.ProcessingResponse(
        response_headers=pb.HeadersResponse(
            response=pb.CommonResponse(
                header_mutation=pb.HeaderMutation(
                    set_headers=[_option("x-set", value)], remove_headers=remove
                )
            )
        )
    )
    data = replies.response_headers([("x-set", value), ("connection", "close")], remove)
    assert data == expected.SerializeToString()


def test_an_answers_headers_that_nothing_changes_are_let_through() -> None:
    assert replies.response_headers([("X-Bad", "v")], []) == replies.CONTINUE_RESPONSE_HEADERS


@given(body=st.binary(), new_length=st.booleans())
def test_a_new_piece_of_an_answer_is_the_generated_one(body: bytes, new_length: bool) -> None:
    common = pb.CommonResponse(body_mutation=pb.BodyMutation(body=body))
    if new_length:
        common.header_mutation.remove_headers.append("content-length")
    expected = pb.ProcessingResponse(response_body=pb.BodyResponse(response=common))
    assert replies.new_response_body(body, new_length=new_length) == expected.SerializeToString()


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
