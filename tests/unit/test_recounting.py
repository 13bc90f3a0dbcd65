"""The prefill engine's count of cached tokens in the answers of every API (fault D14)."""

import json

import pytest
from prometheus_client import CollectorRegistry

from epp.answers import AnswerMetrics
from sidecar.http.exchange import Exchange
from sidecar.http.headers import Content
from sidecar.http.incoming import Incoming
from sidecar.http.passing import Passing
from sidecar.http.recounting import MAX_EVENT, MAX_JSON, Recounted, recounted

CHAT = b'{"id":"x", "usage": {"prompt_tokens": 100, "prompt_tokens_details":{"cached_tokens":100}}}'
EVENT = b"data: " + CHAT + b"\n\n"


def fed(pieces: list[bytes], count: int | None = 32, *, stream: bool = True) -> bytes:
    answer = Recounted(lambda: count, stream=stream)
    return b"".join(map(answer.feed, pieces)) + answer.finish()


@pytest.mark.parametrize(
    "text",
    [
        CHAT.decode(),
        '{"usage":{"input_tokens":100,"input_tokens_details":{"a":1,"cached_tokens":100}}}',
        '{"response":{"usage":{"input_tokens_details":{"cached_tokens":100}}},"type":"x"}',
        '{"type":"message_start","message":{"usage":{"cache_read_input_tokens":100}}}',
    ],
)
def test_only_the_number_changes_wherever_an_api_has_it(text: str) -> None:
    head, _, tail = text.rpartition("100")
    assert recounted(text.encode(), 32).decode() == f"{head}32{tail}"


@pytest.mark.parametrize(
    "text",
    [
        b'{"usage":{"prompt_tokens":100}}',
        b'{"usage":{"prompt_tokens_details":null}}',
        b'{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}',
        b'{"choices":[{"text":"\\"usage\\": {\\"cached_tokens\\": 1}"}]}',
        b'{"tools":{"usage":{"prompt_tokens_details":{"cached_tokens":1}}}}',
        b"[1]",
        b"nope",
    ],
)
def test_where_no_number_stands_none_is_made_up(text: bytes) -> None:
    assert recounted(text, 32) == text


def test_the_event_is_found_however_the_engine_cuts_it() -> None:
    before, after = b'data: {"usage":null,"choices":[1]}\n\n', b"data: [DONE]\n\n"
    stream = before + EVENT + after
    changed = before + b"data: " + recounted(CHAT, 32) + b"\n\n" + after
    for cut in range(len(stream) + 1):
        assert fed([stream[:cut], stream[cut:]]) == changed
    assert fed([stream[at : at + 1] for at in range(len(stream))]) == changed
    assert fed([stream.replace(b"\n", b"\r\n")]) == changed.replace(b"\n", b"\r\n")


def test_as_long_as_nobody_knows_the_engines_own_number_stays() -> None:
    assert fed([EVENT], None) == EVENT
    assert fed([CHAT], None, stream=False) == CHAT


def test_no_more_than_the_limits_is_held() -> None:
    stream = Recounted(lambda: 32, stream=True)
    long = b'data: {"usage":"' + b"x" * MAX_EVENT
    assert stream.feed(long) == long
    assert stream.feed(b'"}') == b'"}'
    assert stream.feed(b"\n\n" + EVENT) == b"\n\n" + b"data: " + recounted(CHAT, 32) + b"\n\n"
    whole = Recounted(lambda: 32, stream=False)
    assert whole.feed(b" " * MAX_JSON) == b""
    assert len(whole.feed(CHAT)) == MAX_JSON + len(CHAT)
    assert whole.finish() == b""


def test_the_announced_length_is_that_of_the_new_number() -> None:
    content = Content("application/json", "", len(CHAT))
    passing = Passing(
        200, content, bodiless=False, hides_usage=False, trusted=False, recount=lambda: 7
    )
    assert passing.feed(CHAT) == b""
    body = passing.finish()
    assert passing.length == len(body) == len(CHAT) - 2
    assert json.loads(body)["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}


def test_metrics_say_what_clients_hear_and_reports_what_the_engine_said() -> None:
    registry = CollectorRegistry()
    exchange = Exchange(Incoming(method="POST", target="/v1/completions", fields=[]), 0.0)
    exchange.measured(AnswerMetrics(registry), ("m", "m", "", ""), 10)
    exchange.recount = lambda: 32
    exchange.answered(200, "application/json", "")
    exchange.piece(CHAT, 1.0)
    exchange.completed()
    assert exchange.ended(2.0).usage.cached_tokens == 100
    name = "llm_d_epp_request_cached_tokens_sum"
    told = [
        one.value for family in registry.collect() for one in family.samples if one.name == name
    ]
    assert told == [32]
