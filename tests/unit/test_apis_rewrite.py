"""A model gets another name: its value's span changes, and nothing else."""

import gzip
import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epp.request.apis.rewrite import with_model

NAMES = st.text() | st.sampled_from(["m", 'qu"ote', "back\\slash", "é", "line\n", "\ud83d", ""])
SCALARS = st.sampled_from(
    ["1e2", "-0", "12345678901234567890", "0.1E-7", "true", "null", '"\\u00e9"', '"\\ud83d"', '"}"']
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + " ,".join(items) + "]")
        | st.lists(inner, max_size=3).map(
            lambda items: "{" + ",".join(f'"model" :{item}' for item in items) + "}"
        )
    ),
    max_leaves=6,
)
KEYS = st.sampled_from(['"a"', '"modeL"', '"model "', '"prompt"', '"\\ud83d"', '"\\\\model"'])
MEMBER = b'{"model":"a"'
GAPS = st.sampled_from(["", " ", "\n\t", "\r\n  "])


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ('{"model":"a","temperature":1e2}', '{"model":"new","temperature":1e2}'),
        ('{ "x" : [1,{"model":"a"}], "model" : "a" }', None),
        ('{"model":"a","model":"b"}', '{"model":"new","model":"new"}'),
        ('{"mod\\u0065l":"a"}', '{"mod\\u0065l":"new"}'),
        ('\ufeff{"model":"a"}', '\ufeff{"model":"new"}'),
        ('{"user":"\\ud83d","model":"\\ud83d"}', '{"user":"\\ud83d","model":"new"}'),
        ('{"user":"\\\\ud83d","model":"a"}', '{"user":"\\\\ud83d","model":"new"}'),
    ],
)
def test_only_the_value_of_the_top_level_member_changes(body: str, changed: str | None) -> None:
    expected = changed or '{ "x" : [1,{"model":"a"}], "model" : "new" }'
    assert with_model(body.encode(), "new") == expected.encode()


def test_an_encoded_half_of_a_surrogate_pair_stays_as_it_is() -> None:
    body = b'{"user":"\xed\xa0\xbd","model":"a"}'
    assert with_model(body, "b") == b'{"user":"\xed\xa0\xbd","model":"b"}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nul",
        b'["model"]',
        b'"model"',
        b'{"prompt":"model"}',
        b'{"x":{"model":"a"}}',
        b'{"model":"a","x":NaN}',
        b'{"model":"a"',
        '{"model":"a"}'.encode("utf-16"),
        gzip.compress(b'{"model":"a"}'),
        b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\na\r\n--b--',
        b'{"model":"a","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
)
def test_what_is_not_a_json_object_with_a_model_is_left_alone(body: bytes) -> None:
    assert with_model(body, "new") is None


@given(st.binary(max_size=80) | st.binary(max_size=9).map(MEMBER.__add__), NAMES)
@example(MEMBER + b"}", "b")
def test_any_bytes_are_edited_or_left_alone(body: bytes, name: str) -> None:
    edited = with_model(body, name)
    assert edited is None or json.loads(edited)["model"] == name.encode("utf-8", "replace").decode()


@given(st.data(), NAMES)
def test_every_byte_outside_the_models_spans_stays(data: st.DataObject, name: str) -> None:
    pieces = ["{" + data.draw(GAPS)]
    spans = data.draw(st.lists(st.booleans(), min_size=1, max_size=5).filter(any))
    expected = list(pieces)
    fresh = msgspec.json.encode(name.encode("utf-8", "replace").decode()).decode()
    for number, model in enumerate(spans):
        comma = "," + data.draw(GAPS) if number else ""
        key = data.draw(st.sampled_from(['"model"', '"\\u006dodel"'])) if model else data.draw(KEYS)
        head = comma + key + data.draw(GAPS) + ":" + data.draw(GAPS)
        value = data.draw(VALUES)
        pieces.append(head + value)
        expected.append(head + (fresh if model else value))
    tail = data.draw(GAPS) + "}" + data.draw(GAPS)
    changed = with_model("".join([*pieces, tail]).encode(), name)
    assert changed == "".join([*expected, tail]).encode()
    assert json.loads(changed)["model"] == name.encode("utf-8", "replace").decode()
