"""Whatever a client sends is understood, passed on unscored, or refused: never an accident."""

import gzip
import json
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.errors import BadRequest, UnsupportedMedia
from epp.request.apis import catalog
from epp.request.apis.prompt import HEAD_BYTES, TextPrompt, TokenPrompt
from epp.request.apis.rewrite import with_model
from epp.request.exchange import Arrival
from epp.request.subset import allowed

GENERATIVE = st.sampled_from(["/v1/completions", "/v1/chat/completions"])
PATHS = st.sampled_from([*catalog.PARSERS, *catalog.FORMS, "/v1/other?x", ""])

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "image_url", "name"]) | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
NAMES = [
    "model",
    "input",
    "instructions",
    "system",
    "previous_response_id",
    "token_ids",
    "features",
    "sampling_params",
    "texts",
    "query",
    "documents",
    "text_1",
    "text_2",
    "prompt",
    "messages",
    "max_tokens",
    "cache_salt",
    "tools",
    "chat_template_kwargs",
    "reasoning_effort",
    "truncate_prompt_tokens",
]


def _arrival(path: str, body: bytes, **headers: str) -> Arrival:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    fixed = {":method": "POST", ":path": path, "content-type": "application/json"}
    return Arrival(headers=fixed | named, body=body, has_body=True)


@given(path=PATHS, body=st.binary(max_size=200))
def test_any_bytes_are_understood_passed_or_refused(path: str, body: bytes) -> None:
    with suppress(BadRequest):
        assert catalog.parse(_arrival(path, body)).api


@given(path=PATHS, body=st.binary(max_size=200), boundary=st.text(max_size=5))
def test_any_form_passes(path: str, body: bytes, boundary: str) -> None:
    content_type = f"multipart/form-data; boundary={boundary}"
    assert catalog.parse(_arrival(path, body, content_type=content_type)).api


@given(
    path=PATHS,
    body=st.binary(max_size=200).flatmap(
        lambda raw: st.sampled_from([raw, gzip.compress(raw), zlib.compress(raw)])
    ),
    coding=st.sampled_from(["gzip", "deflate", "x-gzip", "br", "gzip, gzip", "\u0130dentity"]),
)
def test_any_compressed_bytes_are_understood_passed_or_refused(
    path: str, body: bytes, coding: str
) -> None:
    with suppress(BadRequest, UnsupportedMedia):
        assert catalog.parse(_arrival(path, body, content_encoding=coding)).api


@given(path=PATHS, fields=st.dictionaries(st.sampled_from(NAMES), values))
def test_any_json_is_understood_passed_or_refused(path: str, fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", **fields}).encode()
    try:
        parsed = catalog.parse(_arrival(path, body))
    except BadRequest:
        model = fields.get("model", "m")
        assert not isinstance(model, str) or not model or b"NaN" in body or b"Infinity" in body
    else:
        assert parsed.prompt is not None or parsed.unscored
        assert parsed.output_tokens is None or parsed.output_tokens > 0
        assert parsed.prompt_tokens is None or parsed.prompt_tokens >= 0


@given(path=GENERATIVE, fields=st.dictionaries(st.sampled_from(NAMES), values))
def test_a_renamed_request_is_the_same_request(path: str, fields: dict[str, Any]) -> None:
    body = json.dumps({**fields, "model": "m"}).encode()
    with suppress(BadRequest):
        before = catalog.parse(_arrival(path, body))
        renamed = with_model(body, "other name")
        assert renamed is not None
        assert catalog.parse(_arrival(path, renamed)) == replace(before, model="other name")


contents = st.text(max_size=8) | st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=8)}), max_size=3
)
turns = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": contents}),
    min_size=1,
    max_size=5,
)


@given(
    api=st.sampled_from(
        [
            ("/v1/chat/completions", "messages"),
            ("/v1/messages", "messages"),
            ("/v1/responses", "input"),
        ]
    ),
    turns=turns,
    until=st.integers(1, 5),
    tools=st.none() | st.just([{"name": "t"}]),
)
def test_a_conversation_begins_with_what_it_was_before(
    api: tuple[str, str], turns: list[Any], until: int, tools: Any
) -> None:
    path, member = api

    def said(items: list[Any]) -> bytes:
        body = json.dumps({"model": "m", member: items, "tools": tools}).encode()
        prompt = catalog.parse(_arrival(path, body)).prompt
        assert isinstance(prompt, TextPrompt)
        return prompt.text

    assert said(turns).startswith(said(turns[:until]))


@given(size=st.integers(0, 3 * HEAD_BYTES), other=st.integers(0, 9))
@settings(max_examples=20)
def test_a_bounded_prompt_has_the_size_and_the_beginning_that_it_had(size: int, other: int) -> None:
    text = TextPrompt(bytes(size), None, other_bytes=other, media_tokens=3)
    less = text.bounded()
    assert len(less.text) + less.other_bytes == size + other
    assert text.text.startswith(less.text)
    assert len(less.text) <= HEAD_BYTES
    ids = TokenPrompt(bytes(size & ~3), other)
    fewer = ids.bounded()
    assert len(fewer.ids) // 4 + fewer.other_tokens == size // 4 + other
    assert len(fewer.ids) % 4 == 0


@given(ids=st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_token_ids_survive(ids: list[int]) -> None:
    body = json.dumps({"model": "m", "prompt": ids}).encode()
    prompt = catalog.parse(_arrival("/v1/completions", body)).prompt
    assert isinstance(prompt, TokenPrompt)
    packed = prompt.ids
    assert [int.from_bytes(packed[i : i + 4], "little") for i in range(0, len(packed), 4)] == ids


@given(subset=st.lists(st.text(max_size=30), max_size=5))
def test_any_subset_allows_a_member_or_not_and_never_fails(subset: list[str]) -> None:
    assert allowed(["[::1]:8000"], subset) in ([True], [False])
