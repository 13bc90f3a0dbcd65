"""What each API's parser takes from a body, and what it charges where nothing is generated."""

from typing import Any

import msgspec
import pytest

from epp.request.apis import catalog
from epp.request.apis.conversation import MAX_OPAQUE_BYTES, MEDIA_TOKENS
from epp.request.apis.prompt import Parsed, TextPrompt, TokenPrompt
from tests.fakes.desk import post

IMAGE = {"type": "image", "source": {"type": "base64", "data": "aaaa"}}


def _parse(path: str, **fields: Any) -> Parsed:
    return catalog.parse(post({"model": "m", **fields}, path=path))


def _text(parsed: Parsed) -> bytes:
    assert isinstance(parsed.prompt, TextPrompt)
    assert parsed.prompt.tokenize is None
    return parsed.prompt.text


def _responses(given: Any, **fields: Any) -> Parsed:
    return _parse("/v1/responses", input=given, **fields)


def _messages(messages: Any, **fields: Any) -> Parsed:
    return _parse("/v1/messages", messages=messages, **fields)


def test_a_response_is_scored_by_its_instructions_and_its_input() -> None:
    parsed = _responses("hi", instructions="be brief", max_output_tokens=9, cache_salt="s")
    assert _text(parsed) == b"system\0be brief\0user\0hi"
    assert (parsed.api, parsed.output_tokens, parsed.cache_salt) == ("responses", 9, "s")
    assert parsed.whole == "api"


def test_the_items_of_a_response_give_their_text_in_order() -> None:
    items = [
        {"role": "user", "content": "2+2?"},
        {"type": "function_call", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "output": "4"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]},
        "odd",
    ]
    assert _text(_responses(items)) == b"\0".join(
        [
            b"user\x002+2?",
            b'{"type":"function_call","name":"add","arguments":"{}"}',
            b'{"type":"function_call_output","output":"4"}',
            b"assistant\x004",
            b"odd",
        ]
    )


def test_a_text_and_the_same_text_as_an_item_meet() -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    assert _text(_responses("hi")) == _text(_responses([item]))


def test_the_next_turn_of_a_response_begins_with_the_last_one() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    first = _text(_responses(turns[:1], tools=[{"type": "function"}], instructions="i"))
    assert _text(_responses(turns, tools=[{"type": "function"}], instructions="i")).startswith(
        first
    )


def test_what_the_engine_remembers_stands_between_instructions_and_input() -> None:
    text = _text(_responses("hi", instructions="i", previous_response_id="resp_1"))
    assert text == b'system\0i\0"resp_1"\0user\0hi'


def test_long_items_of_unknown_kind_are_charged_like_an_image() -> None:
    screenshot = {"type": "computer_call_output", "output": "x" * MAX_OPAQUE_BYTES}
    parsed = _responses([screenshot, {"role": "user", "content": [{"type": "input_image"}]}])
    assert isinstance(parsed.prompt, TextPrompt)
    assert parsed.prompt.media_tokens == 2 * MEDIA_TOKENS
    assert len(parsed.prompt.text) < 100


@pytest.mark.parametrize("given", [None, 5, {}, [], "", True])
def test_a10_a_response_whose_input_has_another_shape_passes_unscored(given: Any) -> None:
    assert _responses(given).unscored == "input of unknown shape"


@pytest.mark.parametrize("item", [5, None, [], {"role": 5}, {"content": 5}])
def test_a10_an_item_of_another_shape_is_taken_as_it_stands(item: Any) -> None:
    assert _text(_responses([item])) == (b"" if item is None else msgspec.json.encode(item))


def test_a_message_is_scored_by_tools_system_and_turns() -> None:
    parsed = _messages(
        [{"role": "user", "content": "hi"}], system="s", tools=[{"name": "t"}], max_tokens=7
    )
    assert _text(parsed) == b'[{"name":"t"}]\0system\0s\0user\0hi'
    assert (parsed.api, parsed.output_tokens, parsed.whole) == ("messages", 7, "api")


def test_blocks_of_every_kind_are_understood() -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, IMAGE]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "tool_use", "id": "1", "name": "t", "input": {"a": 1}},
                {"type": "redacted_thinking", "data": "zz"},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "4"},
                {"type": "tool_result", "tool_use_id": "1"},
                {
                    "type": "tool_result",
                    "tool_use_id": "2",
                    "content": [{"type": "text", "text": "5"}, IMAGE, {"type": "odd"}],
                },
            ],
        },
    ]
    parsed = _messages(turns)
    pieces = _text(parsed).split(b"\0")
    assert pieces[:3] == [b"user", b"look", pieces[2]]
    assert b'assistant\0hm\0"t"\0{"a":1}\0{"type":"redacted_thinking","data":"zz"}' in _text(parsed)
    assert b'user\0"1"\x004\0"1"\0"2"\x005\0' in _text(parsed)
    assert isinstance(parsed.prompt, TextPrompt)
    assert parsed.prompt.media_tokens == 3 * MEDIA_TOKENS


def test_the_mark_of_what_to_cache_may_move_without_changing_a_prompt() -> None:
    plain = {"type": "text", "text": "a"}
    marked = plain | {"cache_control": {"type": "ephemeral"}}
    first = _text(_messages([{"role": "user", "content": [marked]}]))
    assert _text(_messages([{"role": "user", "content": [plain]}])) == first
    assert _text(_messages([{"role": "user", "content": "a"}])) == first


def test_a_system_text_that_changes_with_each_request_is_left_out() -> None:
    def text(bill: str) -> bytes:
        billing = {"type": "text", "text": f"x-anthropic-billing-header: {bill}"}
        system = [billing, {"type": "text", "text": "s"}]
        return _text(_messages([{"role": "user", "content": "hi"}], system=system))

    assert text("1") == text("2") == b"system\0s\0user\0hi"
    said = _messages([{"role": "user", "content": "x-anthropic-billing-header: 1"}])
    assert b"billing" in _text(said)


@pytest.mark.parametrize(
    "messages",
    [None, [], {}, "hi", [5], [{"content": 5}], [{"content": ["a"]}], [{"content": [5]}]],
)
def test_a10_messages_of_another_shape_pass_unscored(messages: Any) -> None:
    assert _messages(messages).unscored == "messages of unknown shape"


def test_token_ids_of_a_generation_are_its_prompt_and_meet_those_of_a_completion() -> None:
    parsed = _parse("/inference/v1/generate", token_ids=[1, 2], sampling_params={"max_tokens": 5})
    assert parsed.prompt == TokenPrompt(b"\1\0\0\0\2\0\0\0")
    assert parsed.prompt == _parse("/v1/completions", prompt=[1, 2]).prompt
    assert (parsed.api, parsed.output_tokens) == ("generate", 5)


@pytest.mark.parametrize("sampling", [None, 5, {}, {"max_tokens": "5"}, {"max_tokens": -1}])
def test_a_generation_without_a_usable_limit_has_the_engines_own(sampling: Any) -> None:
    parsed = _parse("/inference/v1/generate", token_ids=[1], sampling_params=sampling)
    assert parsed.output_tokens == 16


def test_equal_ids_around_different_images_do_not_meet() -> None:
    def text(name: str, data: str = "x") -> bytes:
        features = {"mm_hashes": {"image": [name]}, "kwargs_data": {"image": [data]}}
        return _text(_parse("/inference/v1/generate", token_ids=[1, 2], features=features))

    assert text("a") != text("b")
    assert text("a", "x") == text("a", "y")
    parts = [{"type": "image_url"}]
    raw = _text(_parse("/inference/v1/generate", token_ids=[1, 2], content_parts=parts))
    assert raw.endswith(b"\1\0\0\0\2\0\0\0")
    odd = _text(_parse("/inference/v1/generate", token_ids=[1, 2], features=5))
    assert odd != raw


@pytest.mark.parametrize("ids", [None, [], {}, "1", [1.5], ["1"], [-1], [2**32], [[1]], [None]])
def test_a10_token_ids_of_another_shape_pass_unscored(ids: Any) -> None:
    parsed = _parse("/inference/v1/generate", token_ids=ids)
    assert parsed.unscored == "token ids of unknown shape"


@pytest.mark.parametrize(
    ("path", "fields", "tokens"),
    [
        ("/v1/embeddings", {"input": "a" * 40}, 10),
        ("/v1/embeddings", {"input": ["a" * 40, "b" * 8]}, 12),
        ("/v1/embeddings", {"input": [1, 2, 3]}, 3),
        ("/v1/embeddings", {"input": [[1, 2, 3], [4]]}, 4),
        ("/v1/embeddings", {"input": []}, None),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "hi"}]}, None),
        ("/v1/embeddings", {"input": [{"role": "user", "content": "hi"}]}, None),
        ("/v1/embeddings", {"input": 5}, None),
        ("/v2/embed", {"texts": ["abcd"]}, 1),
        ("/pooling", {"input": "abcd"}, 1),
        ("/pooling", {"data": {"x": 1}}, None),
        ("/classify", {"input": "a"}, 1),
        ("/score", {"text_1": "a" * 8, "text_2": ["b" * 4, "c" * 4]}, 6),
        ("/score", {"queries": ["a", "b"], "documents": ["c", "d"]}, 4),
        ("/score", {"data_1": "a", "data_2": 5}, None),
        ("/score", {}, None),
        ("/v1/rerank", {"query": "a" * 400, "documents": ["b" * 4] * 3}, 303),
    ],
)
def test_what_generates_nothing_is_charged_the_size_of_its_texts(
    path: str, fields: dict[str, Any], tokens: int | None
) -> None:
    parsed = _parse(path, **fields)
    assert (parsed.prompt, parsed.prompt_tokens, parsed.output_tokens) == (None, tokens, 1)
    assert (parsed.unscored, parsed.whole) == ("not generative", "api")


@pytest.mark.parametrize(
    "path",
    [
        "/tokenize",
        "/detokenize",
        "/v1/completions/render",
        "/v1/chat/completions/render",
        "/v1/messages/count_tokens",
        "/v1/conversations",
    ],
)
def test_what_costs_the_engine_nothing_is_charged_next_to_nothing(path: str) -> None:
    parsed = _parse(path, prompt="long " * 1000)
    assert (parsed.prompt_tokens, parsed.output_tokens) == (1, 1)
    assert (parsed.prompt, parsed.unscored) == (None, "nothing computed")


def test_a_conversation_may_be_opened_without_a_body() -> None:
    for has_body in (False, True):
        arrival = post(b"" if has_body else None, path="/v1/conversations")
        assert catalog.parse(arrival).api == "conversations"


@pytest.mark.parametrize(
    ("path", "api"), [("/v1/images/generations", "images"), ("/v1/audio/speech", "speech")]
)
def test_images_and_speech_are_routed_by_load_under_their_model(path: str, api: str) -> None:
    parsed = _parse(path, prompt="a cat", input="hello")
    assert (parsed.api, parsed.model, parsed.prompt) == (api, "m", None)


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/images/generations"]
)
def test_odd_text_of_every_api_passes_for_the_engine_to_judge(path: str) -> None:
    parsed = catalog.parse(post(b'{"model":"m","user":"\\ud83d"}', path=path))
    assert (parsed.model, parsed.unscored, parsed.prompt) == ("m", "odd text", None)


@pytest.mark.parametrize("path", ["/inference/v1/generate", "/tokenize", "/score"])
def test_odd_text_needs_no_model_where_plain_text_needs_none(path: str) -> None:
    for model in (b"", b'"model":null,', b'"model":"",'):
        body = b"{" + model + b'"user":"\\ud83d"}'
        assert catalog.parse(post(body, path=path)).model == ""
