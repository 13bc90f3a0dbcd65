"""Where the pieces of an answer begin and end changes nothing that is read from it."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from epp.bodies.usage import ResponseWatch, Unknown, Usage
from sidecar.http.unasked import WithoutUsage

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 64},
}
JSON = json.dumps({"choices": [{"text": 'é\n"usage"'}], "usage": USAGE}).encode()
STREAM = (
    b'data: {"choices":[{"delta":{"content":"\\"usage\\""}}],"usage":null}\r\n\r\n'
    b": comment\n\ndata: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"
    b"data: [DONE]\n\n"
)


def pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]


def test_usage_is_found_whichever_byte_the_cut_falls_on() -> None:
    for kind, body in (("application/json", JSON), ("text/event-stream", STREAM)):
        for cut in range(len(body) + 1):
            watch = ResponseWatch(kind)
            watch.feed(body[:cut])
            watch.feed(body[cut:])
            assert watch.finish() == Usage(100, 64, 20)


@given(cuts=st.lists(st.integers(0, 2000), max_size=40), stream=st.booleans())
def test_usage_is_found_in_any_pieces(cuts: list[int], stream: bool) -> None:
    watch = ResponseWatch("text/event-stream" if stream else "application/json")
    for piece in pieces(STREAM if stream else JSON, cuts):
        watch.feed(piece)
    assert watch.finish() == Usage(100, 64, 20)
    assert watch.unknown is None


@given(
    body=st.lists(
        st.sampled_from([b"data:", b'"usage"', b"\n", b"\r", b"{", b"}", b":", b"1", b"\xff"])
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 2000), max_size=10),
    kind=st.sampled_from(["application/json", "text/event-stream", "", "text/plain"]),
    limit=st.integers(1, 40),
)
def test_no_body_makes_it_fail_or_hold_more_than_its_limit(
    body: bytes, cuts: list[int], kind: str, limit: int
) -> None:
    watch = ResponseWatch(kind, max_carry=limit)
    for piece in pieces(body, cuts):
        watch.feed(piece)
        assert len(watch._carry) <= limit
    assert watch.finish() == Usage()
    assert isinstance(watch.unknown, Unknown)


EVENTS = [
    b'data: {"choices":[{"text":"\\"usage\\""}]}',
    b": usage",
    b"data: [DONE]",
    b'data: {"choices":[],"usage":null}',
    b"",
]
ALONE = b'data: {"choices":[],"usage":{"prompt_tokens":1}}'


@given(
    before=st.lists(st.sampled_from(EVENTS)),
    after=st.lists(st.sampled_from([*EVENTS, ALONE])),
    end=st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]),
    cuts=st.lists(st.integers(0, 2000), max_size=40),
)
def test_exactly_the_first_event_of_usage_is_taken_out_of_any_pieces(
    before: list[bytes], after: list[bytes], end: bytes, cuts: list[int]
) -> None:
    stream = WithoutUsage()
    body = b"".join(event + end for event in [*before, ALONE, *after])
    out = b"".join(stream.feed(piece) for piece in pieces(body, cuts)) + stream.finish()
    assert out == b"".join(event + end for event in [*before, *after])


@given(
    body=st.lists(st.sampled_from([b"data:", ALONE, b'"usage"', b"\n", b"\r", b"{}", b"\xff"])).map(
        b"".join
    ),
    cuts=st.lists(st.integers(0, 2000), max_size=10),
)
def test_where_pieces_end_changes_nothing_of_what_is_taken_out(
    body: bytes, cuts: list[int]
) -> None:
    outs = []
    for parts in ([body], pieces(body, cuts), [body[at : at + 1] for at in range(len(body))]):
        stream = WithoutUsage()
        outs.append(b"".join(map(stream.feed, parts)) + stream.finish())
    assert outs[0] == outs[1] == outs[2]
