"""A sidecar asks for the usage of a stream in its client's place, and keeps it to itself."""

import json

import pytest

from sidecar.http.asking import Asked, asked, with_usage
from sidecar.http.unasked import MAX_HELD, WithoutUsage

TOKEN = b'data: {"choices":[{"text":"\\"usage\\"","index":0}]}\n\n'
USAGE = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"model":"m","stream":true}', Asked("m", True)),
        (b'{"stream_options" : {"a" : 1} }', Asked(options=b'{"a" : 1}')),
        (b'{"stream_options":null}', Asked(options=b"null")),
        (b'{"model":"m","stream":1}', Asked("m", False)),
        (b'{"model":"m","stream":"true"}', Asked("m", False)),
        (b'{"stream":true,"stream":false,"model":["m"]}', Asked(None, False)),
        (b"[1]", Asked()),
        (b"", Asked()),
        (b"\xff", Asked()),
        (b'{"model":"m"', Asked()),
        (b'{"a":' + b"[" * 9999 + b"]" * 9999 + b"}", Asked()),
    ],
)
def test_what_a_body_asks_for_is_read_or_nothing(body: bytes, said: Asked) -> None:
    assert asked(body) == said


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"stream":true}', '{"stream":true,"stream_options":{"include_usage":true}}'),
        (' {"stream":true }\n', ' {"stream":true ,"stream_options":{"include_usage":true}}\n'),
        ('{"stream_options" : null }', '{"stream_options" : {"include_usage":true} }'),
        ('{"stream_options":{}}', '{"stream_options":{"include_usage":true}}'),
        (
            '{"stream_options":{"include_usage": false, "x":1e2}, "n":1.0}',
            '{"stream_options":{"include_usage": true, "x":1e2}, "n":1.0}',
        ),
        (
            '{"stream_options":{"continuous_usage_stats":null}}',
            '{"stream_options":{"continuous_usage_stats":null,"include_usage":true}}',
        ),
    ],
)
def test_only_the_options_change(body: str, expected: str) -> None:
    assert extended(body) == expected.encode()


@pytest.mark.parametrize(
    "body",
    [
        '{"stream_options":{"include_usage":true}}',
        '{"stream_options":{"include_usage":"yes"}}',
        '{"stream_options":{"continuous_usage_stats":true}}',
        '{"stream_options":[]}',
        '{"stream_options":"x"}',
    ],
)
def test_what_the_client_decided_or_only_engines_read_stays(body: str) -> None:
    assert extended(body) is None


def extended(body: str) -> bytes | None:
    raw = body.encode()
    return with_usage(raw, asked(raw))


def cut_out(body: bytes, size: int = 1 << 20) -> bytes:
    stream = WithoutUsage()
    pieces = [stream.feed(body[at : at + size]) for at in range(0, len(body), size)]
    return b"".join(pieces) + stream.finish()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_exactly_the_event_of_usage_is_taken_out(end: bytes, size: int) -> None:
    body = (TOKEN * 3 + b": note\n\n" + USAGE + DONE).replace(b"\n", end)
    assert cut_out(body, size) == body.replace(USAGE.replace(b"\n", end), b"")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        DONE,
        TOKEN * 2 + b'data: {"choices":[],"usage":null}\n\n' + DONE,
        b'data: {"choices":[],\ndata: "usage":{}}\n\n',
        b'data: {"error":{"message":"usage"},"usage":{}}\n\n',
        USAGE[:-1],
        USAGE[:-9],
        b'"usage"\n\n',
    ],
)
def test_what_is_not_that_event_passes(body: bytes) -> None:
    for size in (1, 5, 1000):
        assert cut_out(body, size) == body


def test_usage_beside_tokens_is_the_engines_own_will_and_stays() -> None:
    beside = TOKEN.replace(b"]}", b'],"usage":{"prompt_tokens":7}}')
    assert cut_out(beside * 2 + USAGE + DONE) == beside * 2 + USAGE + DONE


def test_one_event_is_taken_out_and_no_second_one() -> None:
    assert cut_out(USAGE + TOKEN + USAGE) == TOKEN + USAGE


def test_a_whole_event_is_never_held_back() -> None:
    stream = WithoutUsage()
    for _ in range(3):
        assert stream.feed(TOKEN[:9]) + stream.feed(TOKEN[9:] + TOKEN[:4]) == TOKEN
        assert stream.feed(TOKEN[4:]) == TOKEN
    assert stream.feed(USAGE) == b""
    assert stream.feed(b"data") == b"data", "nothing is left to be looked for"


def test_a_long_event_passes_and_the_next_ones_are_looked_at() -> None:
    long = b'data: {"usage":"' + b"x" * 3 * MAX_HELD + b'"}\n\n'
    for size in (1000, MAX_HELD, 1 << 20):
        assert cut_out(TOKEN + long + TOKEN + USAGE + DONE, size) == TOKEN + long + TOKEN + DONE
    stream = WithoutUsage()
    fed = passed = 0
    for at in range(0, len(long), 1000):
        fed += len(long[at : at + 1000])
        passed += len(stream.feed(long[at : at + 1000]))
        assert fed - passed <= MAX_HELD


def test_the_added_options_are_json() -> None:
    body = json.dumps({"model": "m", "prompt": "é", "stream": True}).encode()
    more = with_usage(body, asked(body))
    assert more is not None
    assert json.loads(more) == json.loads(body) | {"stream_options": {"include_usage": True}}
