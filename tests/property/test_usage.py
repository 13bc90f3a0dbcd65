"""Usage of any shape, in any API's answers, is read as a parser would, wherever pieces end."""

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from epp.bodies.usage import MAX_COUNT, ResponseWatch, Unknown, Usage

COUNTS = {
    "prompt_tokens": ("prompt_tokens", "input_tokens"),
    "completion_tokens": ("completion_tokens", "output_tokens"),
}
odd = (
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["oops", "1024", -1, MAX_COUNT, MAX_COUNT + 1, 10**30, [], {}, [1]])
)
count = st.integers(0, 5000) | odd
details = st.fixed_dictionaries({}, optional={"cached_tokens": count}) | odd
usages = (
    st.fixed_dictionaries(
        {},
        optional={
            "prompt_tokens": count,
            "input_tokens": count,
            "completion_tokens": count,
            "output_tokens": count,
            "cache_read_input_tokens": count,
            "prompt_tokens_details": details,
            "input_tokens_details": details,
            "total_tokens": count,
        },
    )
    | odd
)
bodies = st.fixed_dictionaries(
    {"choices": st.sampled_from([[], [{"text": '"usage"'}]])},
    optional={
        "usage": usages,
        "response": st.fixed_dictionaries({}, optional={"usage": usages}) | odd,
        "message": st.fixed_dictionaries({}, optional={"usage": usages}) | odd,
        "type": st.sampled_from(["response.completed", "message_delta"]),
    },
)
cuts = st.lists(st.integers(0, 5000), max_size=30)


def read(body: bytes, kind: str, at: list[int]) -> tuple[Usage, Unknown | None]:
    watch = ResponseWatch(kind)
    edges = [0, *sorted(cut % (len(body) + 1) for cut in at), len(body)]
    for start, end in itertools.pairwise(edges):
        watch.feed(body[start:end])
    return watch.finish(), watch.unknown


def expected(events: list[dict[str, Any]]) -> Usage:
    """What the events say, later counts over earlier ones."""
    known: dict[str, int] = {}
    for event in events:
        for holder in (event, event.get("response"), event.get("message")):
            usage = holder.get("usage") if isinstance(holder, dict) else None
            if isinstance(usage, dict):
                known |= _counts(usage)
    return Usage(**known)


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    found = {name: _first(usage, *keys) for name, keys in COUNTS.items()}
    inner = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    cached = _first(inner, "cached_tokens") if isinstance(inner, dict) else None
    found["cached_tokens"] = _first(usage, "cache_read_input_tokens") if cached is None else cached
    return {name: value for name, value in found.items() if value is not None}


def _first(usage: dict[str, Any], *keys: str) -> int | None:
    fit = [usage[key] for key in keys if key in usage]
    counts = [v for v in fit if type(v) is int and 0 <= v <= MAX_COUNT]
    return counts[0] if counts else None


@given(body=bodies, at=cuts)
def test_usage_of_a_whole_answer_is_what_a_parser_reads(
    body: dict[str, Any], at: list[int]
) -> None:
    usage, unknown = read(json.dumps(body).encode(), "application/json", at)
    assert usage == expected([body])
    assert (unknown is None) is (usage != Usage())


@given(
    events=st.lists(bodies, max_size=6),
    at=cuts,
    end=st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]),
    last=st.sampled_from(["data: [DONE]\n\n", "", ": bye"]),
)
def test_usage_of_a_stream_is_what_a_parser_reads(
    events: list[dict[str, Any]], at: list[int], end: str, last: str
) -> None:
    text = "".join(f"event: x{end[: len(end) // 2]}data: {json.dumps(e)}{end}" for e in events)
    assert read((text + last).encode(), "text/event-stream", at)[0] == expected(events)
