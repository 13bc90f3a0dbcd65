"""Edits and redactions against what a real parser sees, for any JSON in any pieces."""

import json
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.bodies.sharing import LIMITS, WITHIN, Api
from epp.bodies.spans import Body, NotAnObjectError
from sidecar.bodies import SHAPES, splittable
from sidecar.connectors import Meeting
from sidecar.connectors.nixlv2 import NixlV2
from sidecar.transfer.answers import EventFilter, answer_filter
from sidecar.transfer.params import IN_REQUESTS, Unreadable, cleaned
from sidecar.transfer.redaction import (
    IN_ANSWER_NAMES,
    IN_ANSWERS,
    IN_REQUEST_NAMES,
    NAME,
    JsonFilter,
)
from tests.fakes.handoffs import A

NAMES = st.sampled_from(
    [*IN_REQUEST_NAMES, "a", "max_tokens", "logprobs", "n", *IN_REQUESTS, *IN_ANSWERS]
)
SPACE = st.sampled_from(["", "", " ", "\n\t", "\r\n  "])
SCALARS = st.sampled_from(["null", "true", "-1.50e+3", "12345678901234567890123", "0"])
TEXTS = st.text(
    st.sampled_from('a"\\{}[],: \u00e9\U0001f600\n') | st.characters(codec="utf-8"), max_size=8
)


@st.composite
def spelled(draw: st.DrawFn, text: str) -> str:
    """A JSON string of this text, some characters of it escaped."""
    escaped = draw(st.sets(st.integers(0, len(text)), max_size=2))
    ascii_only = draw(st.booleans())
    whole = "".join(
        "".join(f"\\u{ord(unit):04x}" for unit in _units(one))
        if at in escaped
        else json.dumps(one, ensure_ascii=ascii_only)[1:-1]
        for at, one in enumerate(text)
    )
    return f'"{whole}"'


def _units(one: str) -> list[str]:
    data = one.encode("utf-16-be")
    return [chr(int.from_bytes(data[at : at + 2], "big")) for at in range(0, len(data), 2)]


@st.composite
def objects(draw: st.DrawFn, depth: int = 2) -> str:
    """The text of an object: names repeat, spaces are anywhere."""
    space = draw(SPACE)
    members = []
    for name in draw(st.lists(NAMES | TEXTS, max_size=4)):
        key: str = draw(spelled(name))
        members.append(f"{space}{key}{draw(SPACE)}:{space}{draw(values(depth))}{draw(SPACE)}")
    return "{" + ",".join(members or [draw(SPACE)]) + "}"


def values(depth: int) -> st.SearchStrategy[str]:
    plain = SCALARS | TEXTS.flatmap(spelled)
    if not depth:
        return plain
    inner = objects(depth - 1)
    lists = st.lists(inner | plain, max_size=3).map(lambda items: f"[{','.join(items)}]")
    return plain | inner | lists


def without(
    pairs: list[tuple[str, Any]], inside: frozenset[str], names: frozenset[str]
) -> list[tuple[str, Any]]:
    """The model: members by pairs, ours removed here and in objects of these names."""
    return [
        (name, without(value, inside, names) if name in inside and _is_object(value) else value)
        for name, value in pairs
        if name not in names
    ]


class _Pairs(list[tuple[str, Any]]):
    """An object; a JSON list is a plain list."""


def _is_object(value: object) -> bool:
    return isinstance(value, _Pairs)


def pairs(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)


def cut(text: bytes, marks: list[int]) -> list[bytes]:
    edges = sorted({0, len(text), *(mark % (len(text) + 1) for mark in marks)})
    return [text[a:b] for a, b in pairwise(edges)]


few = settings(max_examples=60)
MARKS = st.lists(st.integers(0, 10_000), max_size=8)


@few
@given(objects(), MARKS)
def test_a_filter_removes_exactly_the_member_in_any_pieces(text: str, marks: list[int]) -> None:
    body = text.encode()
    content = JsonFilter(IN_ANSWERS)
    passed = b"".join([*map(content.feed, cut(body, marks)), content.finish()])
    assert pairs(passed) == without(pairs(body), IN_ANSWERS, IN_ANSWER_NAMES)
    assert _is_thinned(passed, body)


def _is_thinned(part: bytes, whole: bytes) -> bool:
    """Whether `part` is `whole` with bytes left out and none added or moved."""
    rest = iter(whole)
    return all(byte in rest for byte in part)


@few
@given(objects(3))
def test_a_cleaned_request_is_the_clients_without_the_member(text: str) -> None:
    body = text.encode()
    try:
        passed = cleaned(body)
    except Unreadable:
        assert "\\u00" in text or any(name in text for name in IN_REQUEST_NAMES)
        return
    assert pairs(passed) == without(pairs(body), IN_REQUESTS, IN_REQUEST_NAMES)
    if pairs(body) == pairs(passed):
        assert passed == body


@few
@given(st.binary(max_size=60) | objects().map(str.encode), MARKS)
def test_pieces_never_change_what_passes(text: bytes, marks: list[int]) -> None:
    for whole, pieced in ((JsonFilter(), JsonFilter()), (EventFilter(), EventFilter())):
        at_once = whole.feed(text) + whole.finish()
        assert at_once == b"".join([*map(pieced.feed, cut(text, marks)), pieced.finish()])


@few
@given(
    st.lists(st.tuples(st.sampled_from(["data:", "data: ", ":", "id: "]), objects()), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    MARKS,
)
def test_events_lose_the_member_and_nothing_else(
    lines: list[tuple[str, str]], end: str, marks: list[int]
) -> None:
    lines = [(head, text.replace("\n", " ").replace("\r", " ")) for head, text in lines]
    body = "".join(f"{head}{text}{end}{end}" for head, text in lines).encode()
    make = answer_filter("text/event-stream; charset=utf-8", "identity")
    assert make is not None
    content = make()
    passed = b"".join([*map(content.feed, cut(body, marks)), content.finish()])
    after = passed.split(end.encode() * 2)
    assert len(after) == len(lines) + 1
    for line, (head, text) in zip(after, lines, strict=False):
        content = JsonFilter()
        alone = content.feed(text.encode()) + content.finish()
        assert line == head.encode() + (alone if head.startswith("data") else text.encode())


@few
@given(st.binary(max_size=80) | objects().map(str.encode) | values(2).map(str.encode))
def test_a_body_is_read_whenever_two_parsers_take_it(text: bytes) -> None:
    try:
        body = Body.read(text)
    except NotAnObjectError:
        return
    assert [(member.name, body.raw[member.value : member.end]) for member in body.members] == [
        (name, value) for name, value in _raw_members(body)
    ]
    try:
        expected = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        assert json.loads(text) is not None
    except ValueError:
        return
    assert {member.name for member in body.members} == expected.keys()


def _raw_members(body: Body) -> list[tuple[str, bytes]]:
    """Members again, each cut out and parsed alone; the last of a name must be the decoder's."""
    found = []
    for member in body.members:
        text = body.raw[member.value : member.end]
        msgspec.json.decode(text, type=msgspec.Raw)
        found.append((member.name, text))
    last = dict(found)
    assert {name: body.value(name) for name in last} == last
    return found


@few
@given(objects(), st.sampled_from([b"null", b'{ "remote_port" : 1 }']), st.sampled_from(Api))
def test_legs_keep_whatever_they_need_not_change(text: str, params: bytes, api: Api) -> None:
    try:
        raw = cleaned(text.encode())
    except Unreadable:
        return
    body, plan, shape = Body.read(raw), NixlV2(), SHAPES[api]
    before = pairs(raw)

    assert pairs(plan.decode(body, api, params)) == [*before, (NAME, pairs(params))]
    assert cleaned(plan.decode(body, api, params)) == raw

    if splittable(body, api) == "sampling-params":
        return
    after = pairs(plan.prefill(body, api, Meeting(leg="r-p1", target=A)))
    one = {"stream", "stream_options", "n", NAME, *shape.put, *LIMITS[api]}
    dropped = shape.dropped
    within = WITHIN.get(api)
    if within is not None:
        assert within in dict(after)
        one, dropped = {"stream", "stream_options", NAME, within}, frozenset()
        limited = dict(dict(after)[within])
        assert {limited[name] for name in LIMITS[api]} == {"1"}
        assert shape.dropped.isdisjoint(limited)
    else:
        assert {dict(after)[name] for name in LIMITS[api]} == {"1"}
    assert dict(after)["stream"] is False
    assert [pair for pair in after if pair[0] not in one] == [
        pair for pair in before if pair[0] not in {*one, *dropped}
    ]
