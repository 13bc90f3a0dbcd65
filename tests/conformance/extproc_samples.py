"""Messages with every field that we know, for comparing codecs."""

from google.protobuf.message import Message

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.errors import NoEndpoint
from epp.request import replies
from tests.fakes import extproc_messages as envoy


def requests() -> list[pb.ProcessingRequest]:
    """What a gateway says."""
    whole = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(
            headers=pb.HeaderMap(
                headers=[
                    pb.HeaderValue(key=":path", raw_value=b"/v1/caf\xc3\xa9"),
                    pb.HeaderValue(key="x-text", value="text"),
                ]
            ),
            end_of_stream=True,
        ),
        observability_mode=True,
        protocol_config=pb.ProtocolConfiguration(
            request_body_mode=pb.FULL_DUPLEX_STREAMED,
            response_body_mode=pb.BUFFERED_PARTIAL,
            send_body_without_waiting_for_header_response=True,
        ),
    )
    envoy.hint(whole, ["10.0.0.1:8000", "[::1]:8000"])
    whole.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "10.0.0.1:8000"})
    body = pb.HttpBody(body=bytes(range(256)) * 300, end_of_stream=True)
    parsed = pb.ProcessingRequest.FromString
    return [
        whole,
        pb.ProcessingRequest(request_body=body),
        pb.ProcessingRequest(request_body=pb.HttpBody(end_of_stream=True)),
        pb.ProcessingRequest(response_body=body),
        parsed(envoy.request_trailers()),
        parsed(envoy.response_headers("503", served="10.0.0.2:8000")),
        parsed(envoy.response_trailers()),
        parsed(envoy.request_headers(request_mode=pb.STREAMED, response_mode=pb.GRPC)),
    ]


def responses() -> list[pb.ProcessingResponse]:
    """What we say: every reply that the product builds, and the rest of the subset."""
    built = [
        replies.CONTINUE_REQUEST_HEADERS,
        replies.CONTINUE_REQUEST_BODY,
        replies.CONTINUE_RESPONSE_HEADERS,
        replies.CONTINUE_RESPONSE_BODY,
        replies.REQUEST_TRAILERS,
        replies.RESPONSE_TRAILERS,
        replies.routing(
            replies.REQUEST_HEADERS,
            "10.0.0.1:8000,[::1]:8000",
            [("x-epp-decision-id", "abc")],
            ["x-gone"],
            new_length=True,
        ),
        replies.routing(
            replies.REQUEST_BODY, "10.0.0.1:8000", [], [], new_length=False, new_body=b"new"
        ),
        replies.routing(replies.REQUEST_HEADERS, None, [], [], new_length=False),
        replies.routing(
            replies.REQUEST_HEADERS,
            "10.0.0.1:8000",
            [],
            [],
            new_length=False,
            scores=[("10.0.0.1:8000", 1.5), ("[::1]:8000", 0.0), ("10.0.0.2:8000", -0.25)],
        ),
        replies.response_headers([(protocol.CONFORMANCE_SERVED, "10.0.0.1:8000")], ["x-gone"]),
        replies.response_headers([], ["content-length"]),
        replies.new_response_body(b"data: {}\n\n", new_length=False),
        replies.new_response_body(b"", new_length=True),
        *replies.pieces(replies.REQUEST_BODY, bytes(range(256)) * 300, end=True),
        replies.piece(replies.RESPONSE_BODY, b"", end=False),
        replies.refusal(NoEndpoint("nobody")),
    ]
    mode = pb.ProcessingMode(
        request_header_mode=1,
        response_header_mode=2,
        request_body_mode=pb.BUFFERED,
        response_body_mode=pb.STREAMED,
        request_trailer_mode=2,
        response_trailer_mode=1,
    )
    rest = pb.ProcessingResponse(
        response_headers=pb.HeadersResponse(
            response=pb.CommonResponse(
                status=pb.CommonResponse.CONTINUE_AND_REPLACE,
                body_mutation=pb.BodyMutation(clear_body=True),
                trailers=envoy.headers_of({"x-t": "1"}),
                clear_route_cache=True,
            )
        ),
        mode_override=mode,
    )
    rest.dynamic_metadata.update({protocol.LB_NAMESPACE: {"n": 1.5, "l": [True, None, "x"]}})
    refused = pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(grpc_status=pb.GrpcStatus(status=14))
    )
    return [*map(pb.ProcessingResponse.FromString, built), rest, refused]


def all_samples() -> list[tuple[str, Message]]:
    """(name of the message in Envoy's package, value)."""
    return [("ProcessingRequest", each) for each in requests()] + [
        ("ProcessingResponse", each) for each in responses()
    ]
