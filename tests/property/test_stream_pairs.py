"""Every pair of body modes: whatever passes, passes whole, and the name is put back everywhere."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from epp._pb import extproc_pb2 as pb
from epp.request.exchange import ModelName, Route
from epp.request.stream import Stream
from tests.fakes import extproc_messages as envoy
from tests.fakes.director import RecordingProgress, route

FDS = pb.FULL_DUPLEX_STREAMED
MODES = st.sampled_from([FDS, pb.BUFFERED, pb.STREAMED, pb.BUFFERED_PARTIAL, pb.NONE])
PIECES = st.binary(max_size=20) | st.sampled_from([b"\x10\x01" * 50_000])
NAME = ModelName(asked="a name", served="served")
EVENTS = st.lists(
    st.sampled_from(
        [
            b'data: {"model":"served","text":"served"}\n\n',
            b'data: {"model":"other"}\r\n\r\n',
            b'data: {"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n',
            b"data: [DONE]\n\n",
            b": hello\n\n",
        ]
    ),
    max_size=6,
).map(b"".join)


@given(
    request_mode=MODES,
    response_mode=MODES,
    prompt=st.lists(PIECES, min_size=1, max_size=3),
    answer=EVENTS,
    cuts=st.lists(st.integers(0, 200), max_size=8),
    trailers=st.booleans(),
    model=st.none() | st.just(NAME),
)
def test_every_pair_of_modes_passes_every_byte_of_an_orderly_exchange(
    request_mode: int,
    response_mode: int,
    prompt: list[bytes],
    answer: bytes,
    cuts: list[int],
    trailers: bool,
    model: ModelName | None,
) -> None:
    stream = envoy.a_stream()
    progress = RecordingProgress()
    outcome = replace(route("10.0.0.1:80", progress=progress), model=model)
    assert _sends(stream, request_mode, response_mode, prompt, outcome) == b"".join(prompt)
    shown = _shows(stream, response_mode, _cut(answer, cuts), trailers=trailers)
    renamed = model is not None and response_mode != pb.NONE
    old, new = b'"model":"served"', b'"model":"a name"'
    if response_mode == pb.BUFFERED_PARTIAL and trailers:
        renamed = False  # nobody can tell it from the beginning of a longer one
    assert shown == (answer.replace(old, new) if renamed else answer)
    told = [event[0] for event in progress.events]
    assert told.count("usage") <= 1
    assert told[-1] == "finished"


def _sends(
    stream: Stream, request_mode: int, response_mode: int, prompt: list[bytes], outcome: Route
) -> bytes:
    """What the engine gets of a request, by what its gateway is told in this mode."""
    first = envoy.request_headers(request_mode=request_mode, response_mode=response_mode)
    actions = list(stream.receive(first))
    whole = b"".join(prompt)
    if request_mode in (pb.BUFFERED, pb.BUFFERED_PARTIAL):
        assert envoy.kinds(envoy.sent(actions)) == ["request_headers"]
        actions = list(stream.receive(envoy.request_body(whole, end=True)))
    elif request_mode == FDS:
        for piece in prompt:
            actions += stream.receive(envoy.request_body(piece))
        actions += stream.receive(envoy.request_body(end=True))
    arrival = envoy.arrival_in(actions)
    assert arrival.body_hidden == (request_mode in (pb.NONE, pb.STREAMED))
    replies = envoy.sent(stream.decided(outcome))
    if request_mode == FDS:
        return b"".join(piece.body for piece in envoy.streamed(replies, "request_body"))
    assert len(replies) == 1
    assert not replies[0].request_body.response.HasField("body_mutation")
    if request_mode == pb.STREAMED:
        for piece in prompt:
            (reply,) = envoy.sent(stream.receive(envoy.request_body(piece)))
            assert reply == pb.ProcessingResponse(request_body=pb.BodyResponse())
    return whole


def _shows(stream: Stream, mode: int, pieces: list[bytes], *, trailers: bool) -> bytes:
    """What the client gets of an answer, by what its gateway is told in this mode."""
    kind = [("content-type", "text/event-stream")]
    stream.receive(envoy.response_headers(more=kind))
    if mode in (pb.BUFFERED, pb.BUFFERED_PARTIAL):
        pieces = [b"".join(pieces)]
    shown = b""
    for number, piece in enumerate(pieces, 1):
        end = number == len(pieces) and not trailers
        if mode == pb.NONE:
            shown += piece
            continue
        replies = envoy.sent(stream.receive(envoy.response_body(piece, end=end)))
        if mode == FDS:
            shown += b"".join(part.body for part in envoy.streamed(replies, "response_body"))
        else:
            (reply,) = replies
            mutation = reply.response_body.response.body_mutation
            shown += mutation.body if mutation.WhichOneof("mutation") else piece
    if trailers or mode == pb.NONE:
        replies = envoy.sent(stream.receive(envoy.response_trailers()))
        shown += b"".join(part.body for part in envoy.streamed(replies[:-1], "response_body"))
        assert envoy.kinds(replies)[-1] == "response_trailers"
    return shown


def _cut(text: bytes, cuts: list[int]) -> list[bytes]:
    """The text in pieces that end at these offsets."""
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[begin:end] for begin, end in pairwise(ends)]
