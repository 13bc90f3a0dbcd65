"""Which requests are understood, which pass unscored, which are refused."""

import json
import re
from typing import Any

import msgspec
import pytest

from epp.errors import BadRequest, ModelNotFound
from epp.request.apis import catalog, openai
from epp.request.apis.conversation import MEDIA_TOKENS
from epp.request.apis.prompt import (
    HEAD_BYTES,
    MAX_TEXT_BYTES,
    Parsed,
    TextPrompt,
    TokenPrompt,
)
from epp.request.exchange import Arrival
from epp.request.offload import INLINE_BYTES

JSON = {"content-type": "application/json"}


def _post(body: bytes | Any, path: str = "/v1/completions", **headers: str) -> Arrival:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Arrival(
        headers={":method": "POST", ":path": path, **JSON, **named}, body=raw, has_body=True
    )


def _completion(**fields: Any) -> Parsed:
    return catalog.parse(_post({"model": "m", **fields}))


def _chat(messages: Any, **fields: Any) -> Parsed:
    return catalog.parse(
        _post({"model": "m", "messages": messages, **fields}, "/v1/chat/completions")
    )


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/completions", "completions"),
        ("/v1/completions?x=1", "completions"),
        ("/v1/completions/", "completions"),
        ("/v1/chat/completions?beta=true", "chat-completions"),
        ("/openai/v1/chat/completions", "chat-completions"),
        ("/v1/completions/render", "render"),
        ("/v1/chat/completions/render/", "render"),
        ("/v1/responses", "responses"),
        ("/v1/responses/resp_1/cancel", "passthrough"),
        ("/v1/messages?beta=true", "messages"),
        ("/anthropic/v1/messages", "messages"),
        ("/v1/threads/thread_1/messages", "passthrough"),
        ("/v1/messages/count_tokens?beta=true", "count-tokens"),
        ("/inference/v1/generate", "generate"),
        ("/generate", "passthrough"),
        ("/tokenize", "tokens"),
        ("/detokenize", "tokens"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/score", "scores"),
        ("/v2/rerank", "scores"),
        ("/pooling", "pooling"),
        ("/classify", "pooling"),
        ("/v1/images/generations", "images"),
        ("/v1/audio/speech", "speech"),
        ("/v1/audio/transcriptions", "passthrough"),
        ("/v1/conversations", "conversations"),
        ("/v1/conversations/conv_1/items", "passthrough"),
        ("/primary-gateway-test", "passthrough"),
        ("/v1/xcompletions", "passthrough"),
        ("/", "passthrough"),
        ("", "passthrough"),
    ],
)
def test_a_path_is_known_by_its_longest_suffix_without_query_or_slash(path: str, api: str) -> None:
    body = {"model": "m", "prompt": "p", "messages": [{"role": "user", "content": "p"}]}
    assert catalog.parse(_post(body, path)).api == api


NAMED = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/render",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/images/generations",
    "/v1/audio/speech",
]
NAMELESS = [
    "/inference/v1/generate",
    "/tokenize",
    "/detokenize",
    "/pooling",
    "/v1/score",
    "/rerank",
    "/v2/embed",
    "/v1/conversations",
]

BROKEN = [
    b'{"model":',
    b"",
    b"nul",
    b"[1,2]",
    b'"x"',
    b'{"model":5}',
    b'{"model":null}',
    b'{"model":{}}',
    b'{"model":""}',
    b'{"prompt":"p"}',
    b'{"model":"m","temperature":NaN}',
    b'{"model":"m","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'{"model":"\xff"}',
]


@pytest.mark.parametrize("path", NAMED)
@pytest.mark.parametrize("body", BROKEN)
def test_a08_a_body_that_is_no_json_object_with_a_model_is_refused(body: bytes, path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        catalog.parse(_post(body, path))
    assert caught.value.status == 400
    assert re.search(r"send a (JSON object with a )?`model`", str(caught.value))


@pytest.mark.parametrize("path", NAMELESS)
@pytest.mark.parametrize("body", BROKEN)
def test_a08_where_no_model_is_needed_what_is_wrong_is_refused_all_the_same(
    body: bytes, path: str
) -> None:
    if body in {b'{"model":null}', b'{"model":""}', b'{"prompt":"p"}'} or (
        not body and path == "/v1/conversations"
    ):
        assert catalog.parse(_post(body, path)).model == ""
    else:
        with pytest.raises(BadRequest):
            catalog.parse(_post(body, path))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"prompt":"p"}', "model not found in request body"),
        (b'{"model":5}', "model not found in request body"),
        (b"nul", "error unmarshaling request bodyMap: "),
        (b" [1]", "error unmarshaling request bodyMap: "),
        (b"", "error unmarshaling request bodyMap: "),
        (b"\xef\xbb\xbf[1]", "error unmarshaling request bodyMap: "),
    ],
)
def test_refusals_begin_with_the_words_that_clients_of_the_reference_know(
    body: bytes, words: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        catalog.parse(_post(body))
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("model", ["m", "", "M"])
def test_a11_a_list_of_known_models_refuses_all_others(model: str) -> None:
    rules = catalog.Rules(known_models=frozenset({"m"}))
    catalog.admit(model, catalog.ANY)
    if model != "M":
        catalog.admit(model, rules)
        return
    with pytest.raises(ModelNotFound) as caught:
        catalog.admit(model, rules)
    assert model not in str(caught.value).split()


def test_a_refusal_never_quotes_the_body() -> None:
    for body in (b'{"model": secret-words', b'{"model": {"secret-words": 1}}', b"secret-words"):
        with pytest.raises(BadRequest) as caught:
            catalog.parse(_post(body))
        assert "secret" not in str(caught.value)


def test_a02_an_empty_post_to_an_inference_api_is_refused() -> None:
    for has_body in (True, False):
        arrival = Arrival(
            headers={":method": "POST", ":path": "/v1/completions"}, has_body=has_body
        )
        with pytest.raises(BadRequest, match="empty"):
            catalog.parse(arrival)


def test_a_body_that_the_gateway_keeps_to_itself_is_routed_by_load() -> None:
    headers = {":method": "POST", ":path": "/v1/completions"}
    parsed = catalog.parse(Arrival(headers=headers, body_hidden=True))
    assert (parsed.prompt, parsed.unscored) == (None, "body not shown")


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
def test_a02_other_methods_pass_unscored(method: str) -> None:
    arrival = Arrival(headers={":method": method, ":path": "/v1/completions"})
    assert catalog.parse(arrival).unscored == "not a POST"


def test_an_identity_encoding_is_none() -> None:
    parsed = catalog.parse(_post({"model": "m", "prompt": "p"}, content_encoding="Identity"))
    assert parsed.prompt is not None


def test_a16_multipart_passes_unscored_whatever_its_path() -> None:
    arrival = _post(b"--x\r\n", content_type="multipart/form-data; boundary=x")
    assert catalog.parse(arrival).unscored == "not JSON"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", ""])
def test_json_is_known_by_its_type_or_by_none(kind: str) -> None:
    parsed = catalog.parse(_post({"model": "m", "prompt": "p"}, content_type=kind))
    assert parsed.model == "m"


def test_a10_a_text_prompt() -> None:
    prompt = _completion(prompt="héllo").prompt
    assert isinstance(prompt, TextPrompt)
    assert (prompt.text, prompt.other_bytes) == ("héllo".encode(), 0)
    assert prompt.tokenize == (("prompt", '"héllo"'.encode()),)


def test_a_text_is_the_same_however_it_is_escaped_and_goes_to_an_engine_as_it_was_written() -> None:
    raws = [r'"a\n\u00e9/"', r'"a\u000aé\/"']
    found = [
        openai.completions("/v1/completions", f'{{"model":"m","prompt":{raw}}}'.encode()).prompt
        for raw in raws
    ]
    assert all(isinstance(prompt, TextPrompt) for prompt in found)
    assert {prompt.text for prompt in found} == {"a\né/".encode()}
    assert [prompt.tokenize for prompt in found] == [(("prompt", raw.encode()),) for raw in raws]


@pytest.mark.parametrize("size", [INLINE_BYTES // 2, 2 * INLINE_BYTES])
def test_what_an_engine_tokenizes_has_the_members_that_shape_it_however_large(size: int) -> None:
    asked = _completion(prompt="\n" * (size // 2), add_special_tokens=False).prompt
    assert isinstance(asked, TextPrompt)
    assert dict(asked.tokenize or ())["add_special_tokens"] == b"false"
    assert json.loads(dict(asked.tokenize or ())["prompt"]) == asked.text.decode()
    cut = _completion(prompt="\n" * (size // 2), truncate_prompt_tokens=5).prompt
    assert isinstance(cut, TextPrompt)
    assert (cut.tokenize, cut.text) == (None, asked.text)


def test_a_large_body_is_looked_through_where_it_is_parsed() -> None:
    large = _completion(prompt="\n" * INLINE_BYTES).prompt
    assert isinstance(large, TextPrompt)
    assert not callable(large.asked)


def test_a10_half_of_a_surrogate_pair_in_a_prompt_passes_unscored() -> None:
    body = b'{"model":"m","prompt":"a\\ud800"}'
    assert openai.completions("/v1/completions", body).prompt is None


def test_a10_token_ids() -> None:
    prompt = _completion(prompt=[1, 2, 258]).prompt
    assert prompt == TokenPrompt(b"\1\0\0\0\2\0\0\0\2\1\0\0")


def test_a10_of_several_prompts_the_longest_gives_the_keys_and_all_give_the_load() -> None:
    assert _completion(prompt=[[1], [2, 3], [4]]).prompt == TokenPrompt(
        b"\2\0\0\0\3\0\0\0", other_tokens=2
    )
    text = _completion(prompt=["a", "bcd", "ef"]).prompt
    assert text == TextPrompt(b"bcd", (("prompt", b'"bcd"'),), other_bytes=3)


@pytest.mark.parametrize(
    "prompt",
    [None, [], {}, 5, True, [[]] * 0, ["a", 1], [1, "a"], [1, [2]], [-1], [2**32], [1.5], [None]],
)
def test_a10_a_prompt_of_unknown_shape_passes_unscored(prompt: Any) -> None:
    parsed = _completion(prompt=prompt)
    assert parsed.prompt is None
    assert parsed.unscored == "prompt of unknown shape"


def test_a10_a_missing_prompt_passes_unscored() -> None:
    assert _completion().prompt is None


@pytest.mark.parametrize("raw", [b'"\xff\xfe"', b'"cut \\ud83d"', b"[" * 500 + b"]" * 500])
def test_a_prompt_that_cannot_be_read_passes_unscored(raw: bytes) -> None:
    assert catalog.parse(_post(b'{"model":"m","prompt":' + raw + b"}")).prompt is None


def test_a_truncated_prompt_is_not_tokenized_for_the_engine_computes_another() -> None:
    prompt = _completion(prompt="hello", truncate_prompt_tokens=3).prompt
    assert isinstance(prompt, TextPrompt)
    assert prompt.tokenize is None


def test_a10_chat_content_of_every_shape_is_understood() -> None:
    parsed = _chat(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}, "there"]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "tool", "tool_call_id": "1", "content": "4"},
        ]
    )
    assert isinstance(parsed.prompt, TextPrompt)
    assert parsed.prompt.text == (
        b'system\0be brief\0user\0hi\0there\0assistant\0[{"id":"1"}]\0tool\x004\0"1"'
    )
    assert parsed.prompt.tokenize is not None


def test_the_beginning_of_a_conversation_is_the_beginning_of_the_next_turn() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    first, second = _chat(turns[:1]).prompt, _chat(turns).prompt
    assert isinstance(first, TextPrompt)
    assert isinstance(second, TextPrompt)
    assert second.text.startswith(first.text)


def test_images_are_told_apart_but_never_tokenized() -> None:
    def look(url: str) -> TextPrompt:
        image = {"type": "image_url", "image_url": {"url": url}}
        prompt = _chat([{"role": "user", "content": [image]}]).prompt
        assert isinstance(prompt, TextPrompt)
        return prompt

    one, other = look("data:image/png;base64,aa"), look("data:image/png;base64,ab")
    assert one.text != other.text
    assert one.tokenize is None
    assert one.media_tokens == MEDIA_TOKENS


@pytest.mark.parametrize("messages", [None, [], {}, "hi", [5], [{"content": 5}]])
def test_a10_messages_of_unknown_shape_pass_unscored(messages: Any) -> None:
    assert _chat(messages).unscored == "messages of unknown shape"


def test_what_shapes_the_template_goes_along_to_the_tokenizer() -> None:
    parsed = _chat(
        [{"role": "user", "content": "hi"}],
        tools=[{"type": "function"}],
        add_generation_prompt=False,
        chat_template_kwargs={"enable_thinking": True},
        reasoning_effort="low",
    )
    assert isinstance(parsed.prompt, TextPrompt)
    fields = dict(parsed.prompt.tokenize or ())
    assert list(fields) == ["messages", "tools", "add_generation_prompt", "chat_template_kwargs"]
    assert msgspec.json.decode(fields["chat_template_kwargs"]) == {
        "enable_thinking": True,
        "reasoning_effort": "low",
    }
    assert parsed.prompt.text.startswith(b'[{"type":"function"}]\0')


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, 16),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 0}, 16),
        ({"max_tokens": -5}, 16),
        ({"max_tokens": "many"}, 16),
        ({"max_tokens": 1e300}, 16),
    ],
)
def test_an_unusable_limit_of_the_answer_is_the_engines_business(
    fields: dict[str, Any], limit: int
) -> None:
    assert _completion(prompt="p", **fields).output_tokens == limit


def test_chat_prefers_its_newer_limit_and_may_have_none() -> None:
    hi = [{"role": "user", "content": "hi"}]
    assert _chat(hi, max_completion_tokens=3, max_tokens=9).output_tokens == 3
    assert _chat(hi, max_tokens=9).output_tokens == 9
    assert _chat(hi).output_tokens is None


def test_the_cache_salt_is_read_and_a_wrong_one_ignored() -> None:
    assert _completion(prompt="p", cache_salt="s").cache_salt == "s"
    assert _completion(prompt="p", cache_salt=5).cache_salt == ""


def test_a_long_prompt_keeps_its_size_and_its_beginning_but_not_its_memory() -> None:
    text = _completion(prompt="ab" * 2**20).prompt
    assert isinstance(text, TextPrompt)
    assert (len(text.text), text.tokenize) == (HEAD_BYTES, None)
    assert len(text.text) + text.other_bytes == 2**21
    ids = _completion(prompt=[7] * 300_000).prompt
    assert isinstance(ids, TokenPrompt)
    assert len(ids.ids) // 4 + ids.other_tokens == 300_000
    assert len(ids.ids) == MAX_TEXT_BYTES


def test_json_that_only_engines_accept_passes_unscored_for_them_to_judge() -> None:
    for body in (b'\xef\xbb\xbf{"model":"m"}', b'{"model":"m","user":"\\ud83d"}'):
        parsed = catalog.parse(_post(body))
        assert (parsed.model, parsed.unscored) == ("m", "odd text")
    for body in (b'{"user":"\\ud83d"}', b'{"model":"","user":"\\ud83d"}'):
        with pytest.raises(BadRequest):
            catalog.parse(_post(body))
    odd = catalog.parse(_post(b'{"model":"\\ud83d"}')).model
    assert odd.encode() == b"?"


@pytest.mark.parametrize("model", ["a\r\nx-evil: 1", "m" * 20_000, "mödel", "m\0"])
def test_a23_any_model_name_is_understood(model: str) -> None:
    assert catalog.parse(_post({"model": model, "prompt": "p"})).model == model


def test_thoughts_have_the_name_that_tokenize_reads() -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
        {"role": "assistant", "content": "c", "reasoning_content": "old", "reasoning": "new"},
    ]
    body = msgspec.json.encode({"model": "m", "messages": turns})
    prompt = openai.chat("/v1/chat/completions", body).prompt
    assert isinstance(prompt, TextPrompt)
    assert prompt.tokenize is not None
    messages = msgspec.json.decode(dict(prompt.tokenize)["messages"])
    assert [one.get("reasoning") for one in messages] == [None, "hm", "new"]
    assert not any("reasoning_content" in one for one in messages)


@pytest.mark.parametrize(
    ("more", "thinks"),
    [
        ({"reasoning_effort": "low"}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, False),
    ],
)
def test_an_effort_says_whether_the_model_is_to_think(more: dict[str, Any], thinks: bool) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], **more}
    prompt = openai.chat("/v1/chat/completions", msgspec.json.encode(body)).prompt
    assert isinstance(prompt, TextPrompt)
    assert prompt.tokenize is not None
    arguments = msgspec.json.decode(dict(prompt.tokenize)["chat_template_kwargs"])
    assert arguments["enable_thinking"] is thinks
