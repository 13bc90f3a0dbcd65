"""Renaming agrees with a reference that parses, wherever the pieces end."""

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from epp.bodies.rename import Rename
from epp.bodies.spans import Body, NotAnObjectError

ASKED, SERVED = 'my"model', "théirs"
NAMES = ["model", "response", "message", "text", "choices", "mo\\del"]
KINDS = ["application/json", "text/event-stream"]

values: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([SERVED, SERVED + "x", "model", '"model":"théirs"', "\\", "é\U0001f600"])
    | st.none()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=10,
)
objects = st.dictionaries(st.sampled_from(NAMES), values, max_size=5)


@st.composite
def spellings(draw: st.DrawFn, value: st.SearchStrategy[Any] = objects) -> str:
    """A JSON text of an object, in one of the ways in which it can be written."""
    return json.dumps(
        draw(value),
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")])),
    )


BITS = ['"model"', '"théirs"', '"th\\u00e9irs"', '"response"', "data:", "data: ", "\n", "\r"]
soup = st.lists(st.sampled_from([*BITS, *'{}[]:,"\\ d1'])).map("".join)


@st.composite
def streams(draw: st.DrawFn) -> str:
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    events = draw(st.lists(spellings() | st.sampled_from(["[DONE]", "", "{", '"model"'])))
    prefix = draw(st.sampled_from(["data:", "data: ", "event: x" + end + "data: "]))
    return "".join(prefix + event + end + end for event in events)


def reference(text: str) -> str:
    """The same with the name in place, by parsing."""
    raw = text.encode()
    return _edited(raw, inside=True).decode()


def _edited(raw: bytes, *, inside: bool) -> bytes:
    try:
        members = Body.read(raw).members
    except NotAnObjectError:
        return raw
    out, done = [], 0
    for member in members:
        value = raw[member.value : member.end]
        if member.name == "model" and json.loads(value) == SERVED:
            value = json.dumps(ASKED).encode()
        elif inside and member.name in {"response", "message"}:
            value = _edited(value, inside=False)
        out += [raw[done : member.value], value]
        done = member.end
    return b"".join([*out, raw[done:]])


def in_pieces(body: bytes, kind: str, cuts: list[int]) -> bytes:
    rename = Rename(ASKED, SERVED, kind)
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    out = [rename.feed(body[a:b]) for a, b in itertools.pairwise(edges)]
    return b"".join([*out, rename.finish()])


cuts = st.lists(st.integers(0, 5000), max_size=30)


@given(text=spellings(), cuts=cuts)
def test_json_is_renamed_as_a_parser_would(text: str, cuts: list[int]) -> None:
    assert in_pieces(text.encode(), KINDS[0], cuts).decode() == reference(text)


@given(text=spellings(), cuts=cuts, spaced=st.booleans())
def test_every_event_is_renamed_as_a_parser_would(text: str, cuts: list[int], spaced: bool) -> None:
    around = ("data: ", "\r\n\r\n") if spaced else ("data:", "\n\n")
    expected = around[0] + reference(text) + around[1]
    assert in_pieces((around[0] + text + around[1]).encode(), KINDS[1], cuts).decode() == expected


@given(text=spellings(), at=st.integers(0, 500))
def test_data_may_be_broken_into_lines_wherever_json_allows_it(text: str, at: int) -> None:
    gaps = [n for n, char in enumerate(text) if char in "{}[],:" and _outside(text, n)]
    where = gaps[at % len(gaps)] + 1
    body = f"data: {text[:where]}\ndata:{text[where:]}\n\n"
    got = in_pieces(body.encode(), KINDS[1], []).decode()
    assert got.replace("\ndata:", "", 1) == f"data: {reference(text)}\n\n"


def _outside(text: str, at: int) -> bool:
    """Whether this offset is outside of all strings."""
    inside = escaped = False
    for char in text[:at]:
        if inside and escaped:
            escaped = False
        elif inside and char == "\\":
            escaped = True
        elif char == '"':
            inside = not inside
    return not inside


@given(body=streams() | soup, kind=st.sampled_from(KINDS), cuts=cuts)
def test_where_pieces_end_changes_no_byte(body: str, kind: str, cuts: list[int]) -> None:
    raw = body.encode()
    whole = in_pieces(raw, kind, [])
    assert in_pieces(raw, kind, cuts) == whole
    assert in_pieces(raw, kind, list(range(len(raw)))) == whole


@given(body=st.binary(max_size=200), kind=st.sampled_from(KINDS), cuts=cuts)
def test_bytes_without_the_name_pass_verbatim(body: bytes, kind: str, cuts: list[int]) -> None:
    assert in_pieces(body, kind, cuts) == body
