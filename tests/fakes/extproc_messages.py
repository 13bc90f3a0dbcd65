"""Envoy's side of an ext_proc stream: its messages as bytes, our replies as values."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from epp import protocol
from epp._pb import extproc_pb2 as pb
from epp.request.actions import Action, Decide, Send
from epp.request.exchange import Arrival
from epp.request.intake import ByteBudget
from epp.request.stream import Stream

FDS = pb.FULL_DUPLEX_STREAMED


def headers_of(pairs: Mapping[str, str] | Sequence[tuple[str, str]]) -> pb.HeaderMap:
    """As Envoy writes them: `raw_value` only."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return pb.HeaderMap(
        headers=[pb.HeaderValue(key=k, raw_value=v.encode("latin-1")) for k, v in items]
    )


def request_headers(
    pairs: Mapping[str, str] | Sequence[tuple[str, str]] = MappingProxyType({}),
    *,
    end: bool = False,
    request_mode: int = FDS,
    response_mode: int = pb.NONE,
    subset: object = None,
) -> bytes:
    """The first message of a stream. `subset` is a value of the hint, in any shape.

    A mapping is completed with a method and a path; a sequence stands as it is.
    """
    if isinstance(pairs, Mapping):
        pairs = {":path": "/v1/completions", ":method": "POST", **pairs}
    message = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(
            headers=headers_of(pairs),
            end_of_stream=end,
        ),
        protocol_config=pb.ProtocolConfiguration(
            request_body_mode=pb.BodyMode.ValueType(request_mode),
            response_body_mode=pb.BodyMode.ValueType(response_mode),
        ),
    )
    if subset is not None:
        hint(message, subset)
    return message.SerializeToString()


GET = request_headers({":path": "/v1/models", ":method": "GET"}, end=True)
"""A request without a body: it is decided by its headers alone."""


def hint(message: pb.ProcessingRequest, subset: object) -> None:
    space = message.metadata_context.filter_metadata[protocol.SUBSET_NAMESPACE]
    space.update({protocol.SUBSET_HINT: subset})


def request_body(body: bytes = b"", *, end: bool = False, subset: object = None) -> bytes:
    message = pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=end))
    if subset is not None:
        hint(message, subset)
    return message.SerializeToString()


def request_trailers() -> bytes:
    return pb.ProcessingRequest(
        request_trailers=pb.HttpTrailers(trailers=headers_of({"x-checksum": "1"}))
    ).SerializeToString()


def response_headers(
    status: str = "200",
    *,
    end: bool = False,
    served: str | None = None,
    name: str = ":status",
    more: Sequence[tuple[str, str]] = (),
) -> bytes:
    message = pb.ProcessingRequest(
        response_headers=pb.HttpHeaders(
            headers=headers_of([(name, status), *more]), end_of_stream=end
        )
    )
    if served is not None:
        space = message.metadata_context.filter_metadata[protocol.LB_NAMESPACE]
        space.update({protocol.DESTINATION_SERVED: served})
    return message.SerializeToString()


def response_body(body: bytes = b"", *, end: bool = False) -> bytes:
    return pb.ProcessingRequest(
        response_body=pb.HttpBody(body=body, end_of_stream=end)
    ).SerializeToString()


def response_trailers() -> bytes:
    return pb.ProcessingRequest(
        response_trailers=pb.HttpTrailers(trailers=headers_of({"x-usage": "1"}))
    ).SerializeToString()


def a_stream(
    *, limit: int = 10 * 2**20, budget: ByteBudget | None = None, new_id: str = "made-up-id"
) -> Stream:
    return Stream(
        budget=budget or ByteBudget(2**30), new_id=lambda: new_id, max_request_bytes=limit
    )


def sent(actions: Sequence[Action]) -> list[pb.ProcessingResponse]:
    """Our replies; fails on anything that is not a reply."""
    assert all(isinstance(action, Send) for action in actions), actions
    return replies_in(actions)


def replies_in(actions: Sequence[Action]) -> list[pb.ProcessingResponse]:
    """Our replies among other actions."""
    return [
        pb.ProcessingResponse.FromString(action.data)
        for action in actions
        if isinstance(action, Send)
    ]


def kinds(replies: Sequence[pb.ProcessingResponse]) -> list[str]:
    return [str(reply.WhichOneof("response")) for reply in replies]


def arrival_in(actions: Sequence[Action]) -> Arrival:
    """The one arrival that is to be decided."""
    (decide,) = actions
    assert isinstance(decide, Decide)
    return decide.arrival


def set_in(mutation: pb.HeaderMutation) -> dict[str, str]:
    """Headers that a mutation sets, after checking how it sets them."""
    for option in mutation.set_headers:
        assert option.append_action == pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        assert option.header.value == ""
    return {each.header.key: each.header.raw_value.decode() for each in mutation.set_headers}


def streamed(replies: Sequence[pb.ProcessingResponse], kind: str) -> list[pb.StreamedBodyResponse]:
    """The pieces of a body among replies; `kind` is request_body or response_body."""
    return [
        getattr(reply, kind).response.body_mutation.streamed_response
        for reply in replies
        if reply.WhichOneof("response") == kind
    ]
