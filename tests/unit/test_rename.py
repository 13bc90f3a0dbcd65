"""Answers name the model as the client did, and nothing else in them changes."""

import json

import pytest

from epp.bodies.rename import Rename
from epp.bodies.walk import longest_spelling

EVENTS = "text/event-stream"


def renamed(body: str, kind: str = "application/json", *, asked: str = "mine") -> str:
    rename = Rename(asked, "theirs", kind)
    return (rename.feed(body.encode()) + rename.finish()).decode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"model":"theirs"}', '{"model":"mine"}'),
        (' {\n "a" : [1, {"b":"}"}],\r\n "model"\t: "theirs" } ', None),
        ('{"model":"theirs","model":"theirs"}', '{"model":"mine","model":"mine"}'),
        ('{"\\u006dodel":"th\\u0065irs"}', '{"\\u006dodel":"mine"}'),
        ('{"response":{"model":"theirs"}}', '{"response":{"model":"mine"}}'),
        ('{"message":{"id":"1","model":"theirs"},"model":"theirs"}', None),
    ],
)
def test_the_models_name_is_put_back(body: str, expected: str | None) -> None:
    assert renamed(body) == (expected or body.replace("theirs", "mine"))


@pytest.mark.parametrize(
    "body",
    [
        '{"model":"theirs-too"}',
        '{"model":"their"}',
        '{"model":["theirs"]}',
        '{"model":{"model":"theirs"}}',
        '{"model":null,"name":"theirs"}',
        '{"text":"\\"model\\":\\"theirs\\"","object":"model","id":"theirs"}',
        '{"choices":[{"model":"theirs"}],"data":{"model":"theirs"}}',
        '{"response":{"message":{"model":"theirs"}}}',
        '{"response":["model","theirs"]}',
        '{"models":"theirs","Model":"theirs","mode":"theirs"}',
        '[{"model":"theirs"}]',
        '"model"',
        '{"a":1}{"model":"theirs"}',
        '{"a":1];"model":"theirs"}',
        "",
        "theirs",
        '{"model":"theirs',
        '{"model"',
        '{"mod',
        '{"\\x6dodel":"theirs"}',
    ],
)
def test_what_only_looks_alike_stays(body: str) -> None:
    assert renamed(body) == body


def test_the_name_is_escaped_as_json_needs_it() -> None:
    asked = 'a"b\\c\né\U0001f600'
    assert json.loads(renamed('{"model":"theirs"}', asked=asked)) == {"model": asked}


def test_data_over_several_lines_is_one_text() -> None:
    body = 'data: {"response":\r\ndata: {"model":\r\ndata: "theirs"}}\r\n\r\n'
    assert renamed(body, EVENTS) == body.replace("theirs", "mine")
    new_event = 'data: {"response":\n\ndata: {"model": "theirs"}}\n\n'
    assert renamed(new_event, EVENTS) == new_event.replace("theirs", "mine")
    behind = 'data: {"a":1}\ndata: {"model":"theirs"}\n\n'
    assert renamed(behind, EVENTS) == behind


def test_a_string_does_not_go_on_in_the_next_line() -> None:
    for body in (
        'data: {"model":"the\ndata: irs"}\n\n',
        'data: {"a":"\\\ndata: ","model":"theirs"}\n\n',
        'data: {"a":"\ndata: ","model":"theirs"}\n\n',
    ):
        assert renamed(body, EVENTS) == body


def test_a_byte_order_mark_is_no_part_of_the_first_event() -> None:
    body = '\ufeffdata: {"model":"theirs"}\n\n'
    assert renamed(body, EVENTS) == body.replace("theirs", "mine")
    assert renamed('\ufeff{"model":"theirs"}') == '\ufeff{"model":"mine"}'


def test_lines_of_other_fields_pass() -> None:
    body = 'event: {"model":"theirs"}\nid\ndat\ndata\n\nretry: 1'
    assert renamed(body, EVENTS) == body


@pytest.mark.parametrize(
    ("kind", "coding", "may_change"),
    [
        ("application/json; charset=utf-8", "", True),
        ("application/problem+json", "identity", True),
        ("Text/Event-Stream", " Identity ", True),
        ("application/json", "gzip", False),
        ("text/plain", "", False),
        ("", "", False),
    ],
)
def test_bodies_that_cannot_be_read_pass(kind: str, coding: str, may_change: bool) -> None:
    rename = Rename("mine", "theirs", kind, coding)
    assert rename.may_change is may_change
    body = b'{"model":"theirs"}'
    if not may_change:
        assert rename.feed(body) == body
        assert rename.finish() == b""


def test_equal_names_change_nothing() -> None:
    assert not Rename("theirs", "theirs", "application/json").may_change


def test_a_whole_event_is_never_held_back() -> None:
    rename = Rename("mine", "theirs", EVENTS)
    event = b'data: {"model":"theirs","a":"'
    for _ in range(3):
        got = rename.feed(event) + rename.feed(b'x"}\n\n')
        assert got == b'data: {"model":"mine","a":"x"}\n\n'


def test_no_more_is_held_back_than_a_name_may_take() -> None:
    for body in (b'{"model":"' + b"t" * 5000, b'{"' + b"k" * 5000, b'{"a":"' + b"\\" * 5000):
        rename = Rename("mine", "theirs", "application/json")
        fed = passed = 0
        for at in range(len(body)):
            fed += 1
            passed += len(rename.feed(body[at : at + 1]))
            assert fed - passed <= max(longest_spelling("theirs"), longest_spelling("response"))
        assert passed + len(rename.finish()) == fed


def test_a_long_body_takes_time_in_proportion() -> None:
    row = b'{"embedding":[' + b"0.25," * 200_000 + b'1],"object":"x\\"y"}'
    body = b'{"data":[' + b",".join([row] * 4) + b'],"model":"theirs"}'
    rename = Rename("mine", "theirs", "application/json")
    got = b"".join(rename.feed(body[at : at + 65_536]) for at in range(0, len(body), 65_536))
    assert got + rename.finish() == body.replace(b"theirs", b"mine")
