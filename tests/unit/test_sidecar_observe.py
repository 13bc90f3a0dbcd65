"""Usage is read from a copy of the answer, whatever the answer looks like."""

import json

import pytest

from epp.bodies.usage import MAX_COUNT, Carries, ResponseWatch, Unknown, Usage, carried

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 64},
}


def read(body: bytes, kind: str = "application/json", coding: str = "") -> ResponseWatch:
    watch = ResponseWatch(kind, coding)
    watch.feed(body)
    return watch


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({"usage": USAGE}, Usage(100, 64, 20)),
        ({"usage": {"prompt_tokens": 7}}, Usage(7, None, None)),
        ({"usage": {"prompt_tokens": 7, "prompt_tokens_details": None}}, Usage(7, None, None)),
        ({"usage": {"input_tokens": 7, "output_tokens": 2}}, Usage(7, None, 2)),
        ({"usage": {"input_tokens": 7, "cache_read_input_tokens": 3}}, Usage(7, 3, None)),
        ({"response": {"usage": {"input_tokens": 5}}}, Usage(5, None, None)),
        ({"usage": {"prompt_tokens": MAX_COUNT}}, Usage(MAX_COUNT, None, None)),
    ],
)
def test_usage_is_read_from_json(body: object, usage: Usage) -> None:
    watch = read(json.dumps(body).encode(), "application/json; charset=utf-8")
    assert watch.finish() == usage
    assert watch.unknown is None


@pytest.mark.parametrize(
    "usage",
    [
        "oops",
        1,
        None,
        [],
        True,
        {},
        {"prompt_tokens": "7"},
        {"prompt_tokens": -1},
        {"prompt_tokens": True},
        {"prompt_tokens": 1.5},
        {"prompt_tokens": MAX_COUNT + 1},
        {"prompt_tokens_details": "x"},
        {"prompt_tokens_details": {"cached_tokens": {}}},
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_a_usage_of_any_wrong_type_is_absent(usage: object, kind: str) -> None:
    text = json.dumps({"usage": usage}).encode()
    watch = read(b"data: " + text + b"\n\n" if "event" in kind else text, kind)
    assert (watch.finish(), watch.unknown) == (Usage(), Unknown.ABSENT)


@pytest.mark.parametrize("body", [b"", b"null", b"[1]", b"{", b'"usage"', b"\xff\xfe", b"[" * 9999])
def test_a_body_that_is_not_what_it_says_is_no_error(body: bytes) -> None:
    watch = read(body)
    assert (watch.finish(), watch.unknown) == (Usage(), Unknown.ABSENT)


def test_a_compressed_body_is_not_looked_at() -> None:
    watch = read(json.dumps({"usage": USAGE}).encode(), coding="gzip")
    assert (watch.finish(), watch.unknown) == (Usage(), Unknown.COMPRESSED)
    assert read(b'{"usage": {"prompt_tokens": 1}}', coding="identity").finish() == Usage(1)


def test_other_media_types_are_opaque() -> None:
    watch = read(json.dumps({"usage": USAGE}).encode(), "text/html")
    assert (watch.finish(), watch.unknown) == (Usage(), Unknown.OPAQUE)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_the_last_usage_of_a_stream_counts(ending: bytes) -> None:
    events = [
        {"usage": None},
        {"message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 4}}},
        {"usage": {"output_tokens": 1}},
        {"usage": {"output_tokens": 5}},
    ]
    body = b"".join(b"data:" + json.dumps(e).encode() + ending * 2 for e in events)
    assert read(body + b"data: [DONE]" + ending * 2, "text/event-stream").finish() == Usage(9, 4, 5)


def test_a_last_line_without_its_end_still_counts() -> None:
    assert read(b'data: {"usage":{"prompt_tokens":3}}', "text/event-stream").finish() == Usage(3)


def test_a_json_body_at_the_limit_is_read_and_beyond_it_is_too_large() -> None:
    body = json.dumps({"usage": USAGE}).encode()
    at_limit = ResponseWatch("application/json", max_carry=len(body))
    beyond = ResponseWatch("application/json", max_carry=len(body) - 1)
    for watch in (at_limit, beyond):
        watch.feed(body[:10])
        watch.feed(body[10:])
    assert at_limit.finish() == Usage(100, 64, 20)
    assert (beyond.finish(), beyond.unknown) == (Usage(), Unknown.TOO_LARGE)


def test_a_line_beyond_the_limit_is_skipped_and_later_ones_are_read() -> None:
    watch = ResponseWatch("text/event-stream", max_carry=100)
    for _ in range(50):
        watch.feed(b"x" * 10)
    assert watch.unknown is Unknown.TOO_LARGE
    watch.feed(b'"usage"\ndata: {"usage":{"prompt_tokens":3}}\n\n')
    assert (watch.finish(), watch.unknown) == (Usage(3), None)


def test_nothing_is_held_back_beyond_the_limit() -> None:
    watch = ResponseWatch("text/event-stream", max_carry=1000)
    for _ in range(1000):
        watch.feed(b"data: " + b"x" * 99)
        assert len(watch._carry) <= 1000


@pytest.mark.parametrize(
    ("data", "carries"),
    [
        (b' {"choices":[],"usage":{"prompt_tokens":1}}', Carries.ALONE),
        (b'{"choices":[{"text":"a"}],"usage":{"prompt_tokens":1}}', Carries.BESIDE),
        (b'{"usage":{}}', Carries.BESIDE),
        (b'{"choices":[],"usage":null}', Carries.NOTHING),
        (b'{"choices":[]}', Carries.NOTHING),
        (b'{"choices":[],"text":"\\"usage\\""}', Carries.NOTHING),
        (b'["usage"]', Carries.NOTHING),
        (b'"usage" [DONE]', Carries.NOTHING),
        (b" [DONE]", Carries.NOTHING),
    ],
)
def test_an_event_of_nothing_but_usage_is_told_from_others(data: bytes, carries: Carries) -> None:
    assert carried(data) is carries
