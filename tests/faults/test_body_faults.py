"""Faults of answers whose bodies are read or changed on their way (group A)."""

import pytest

from epp.bodies.rename import Rename


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_A12_every_event_of_a_stream_is_renamed(end: str) -> None:
    """Protected by `_Events._line_ends`, which begins anew after each blank line; red when only
    the first event is renamed."""
    first = '{"id":"1","model":"theirs","choices":[{"text":"theirs"}]}'
    created = '{"type":"response.created","response":{"model":"theirs"}}'
    lines = [
        f"data: {first}",
        "",
        f": theirs{end}event: response.created{end}data:{created}",
        "",
        *(['data: {"model":"theirs","choices":[]}', ""] * 3),
        "data: [DONE]",
        "",
    ]
    body = end.join(lines) + end
    rename = Rename("mine", "theirs", "text/event-stream")
    got = rename.feed(body.encode()) + rename.finish()
    expected = body.replace('l":"theirs"', 'l":"mine"')
    assert got.decode() == expected
