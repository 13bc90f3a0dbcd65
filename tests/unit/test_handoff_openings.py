"""An answer that opens with an error event is known before a byte of it is passed."""

import json

import pytest

from sidecar.transfer.openings import MAX_HELD, Opening, Verdict
from tests.fakes.handoffs import recorded

SSE = "text/event-stream; charset=utf-8"
STREAMS = [text.encode() for text in recorded("stream")]
ERROR = b'data: {"error": {"message": "Internal server error", "code": 500}}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("text", STREAMS)
def test_recorded_streams_are_told_apart(text: bytes, size: int) -> None:
    opening = Opening(SSE)
    for at in range(0, len(text), size):
        opening.feed(text[at : at + size])
        assert opening.held == text[: at + size]
    assert opening.finish() is (Verdict.ERROR_EVENT if b'"error"' in text else Verdict.GOOD)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (ERROR, Verdict.ERROR_EVENT),
        (ROLE, Verdict.UNDECIDED),
        (ROLE + ERROR, Verdict.ERROR_EVENT),
        (ROLE + WORD + ERROR, Verdict.GOOD),
        (WORD, Verdict.GOOD),
        (WORD[:-2], Verdict.UNDECIDED),
        (b": ping\r\n\r\nevent: x\r\n", Verdict.UNDECIDED),
        (b": ping\r\n\r\n" + ERROR, Verdict.ERROR_EVENT),
        (b'data: {"object":"error","message":"m"}\n\n', Verdict.ERROR_EVENT),
        (b"data: [DONE]\n\n", Verdict.GOOD),
        (b"data: \xff\n\n", Verdict.GOOD),
        (b'data: {"choices":[]}\n\n', Verdict.GOOD),
        (b'data: {"choices":[{"text":"x"}]}\n\n', Verdict.GOOD),
        (b'data: {"choices":[{"delta":{"role":"a"},"finish_reason":"stop"}]}\n', Verdict.GOOD),
        (b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}\n', Verdict.GOOD),
    ],
)
def test_the_first_event_that_says_something_decides(text: bytes, verdict: Verdict) -> None:
    assert Opening(SSE).feed(text) is verdict


def test_an_answer_in_one_piece_is_good_at_once() -> None:
    opening = Opening("application/json")
    assert opening.verdict is Verdict.GOOD
    assert opening.feed(json.dumps({"error": {}}).encode()) is Verdict.GOOD


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (b"", Verdict.GOOD),
        (ROLE, Verdict.GOOD),
        (WORD.rstrip(), Verdict.GOOD),
        (ERROR.rstrip(), Verdict.ERROR_EVENT),
    ],
)
def test_an_end_decides(text: bytes, verdict: Verdict) -> None:
    opening = Opening(SSE)
    opening.feed(text)
    assert opening.finish() is verdict


def test_a_beginning_is_held_up_to_the_limit() -> None:
    opening = Opening(SSE)
    assert opening.feed(b":" * MAX_HELD) is Verdict.UNDECIDED
    assert opening.feed(b":") is Verdict.GOOD
    assert len(opening.held) == MAX_HELD + 1
