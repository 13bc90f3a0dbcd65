"""What is looked up for a sequence of names is what going through the fields would give."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.http import headers
from sidecar.http.client import Head
from sidecar.http.shapes import answer_shape, request_shape

NAMES = st.sampled_from(
    [b"Host", b"accept", b"Accept-Encoding", b"Content-Length", b"Transfer-Encoding", b"Date",
     b"content-type", b"Content-Encoding", b"x-prefiller-host-port", b"x-epp-decision-id",
     b"TE", b"Upgrade", b"x-100%", b"Server", b"Keep-Alive"]
)  # fmt: skip
VALUES = st.sampled_from([b"", b"1", b"a b", b"100%d", b"text/event-stream"])
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=8)


def written(fields: headers.Fields) -> list[bytes]:
    return sorted(name.lower() + b": " + value for name, value in fields)


def lines(text: bytes) -> list[bytes]:
    split = (line.partition(b": ") for line in text.split(b"\r\n")[:-1])
    return sorted(name.lower() + b": " + value for name, _, value in split)


@given(FIELDS)
def test_an_engine_gets_the_same_fields(fields: headers.Fields) -> None:
    shape = request_shape(tuple(name for name, _ in fields))
    got = shape.engine_lines([value for _, value in fields], 7)
    assert lines(got) == written(headers.for_engine(fields, 7))


@given(FIELDS)
def test_a_client_gets_the_same_fields(fields: headers.Fields) -> None:
    shape = answer_shape(tuple(name for name, _ in fields))
    got = shape.client_lines([value for _, value in fields])
    assert lines(got) == written(headers.without(headers.for_client(fields), b"content-length"))


@given(FIELDS)
def test_a_head_says_the_same_of_its_body(fields: headers.Fields) -> None:
    shape = answer_shape(tuple(name for name, _ in fields))
    looked_up = Head(200, "OK", fields, shape=shape, worth=[value for _, value in fields])
    assert looked_up.content == Head(200, "OK", fields).content


def test_whoever_asks_for_more_is_not_plain() -> None:
    assert request_shape((b"Host", b"accept")).is_plain
    for name in (
        b"X-Prefiller-Host-Port",
        b"Expect",
        b"upgrade",
        b"content-encoding",
        b"X-Epp-Leg",
    ):
        assert not request_shape((b"Host", name)).is_plain
    assert not request_shape((b"accept",)).is_plain, "no host"
