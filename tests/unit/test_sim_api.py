"""Bodies of the simulated engine's API: what is read, refused and written."""

import json
from dataclasses import replace
from typing import Any

import pytest

from epp.sim.answers import Answer
from epp.sim.api import MAX_CHOICES, MAX_PROMPTS, ApiError, Ask, parse_chat, parse_completion
from epp.sim.api import tokenize as answer_tokenize
from epp.sim.catalog import answer_to
from epp.sim.media import TOKENS
from epp.sim.settings import EngineSettings
from epp.sim.tokenizer import ANSWER_IDS, PLACEHOLDER, decode, encode, render_chat

SETTINGS = EngineSettings(port=0, model="tiny", loras=("pirate",), max_model_len=64)
HI = [{"role": "user", "content": "hi"}]


def completion(**body: Any) -> Ask:
    return parse_completion(json.dumps({"prompt": "hello", **body}).encode(), SETTINGS)


def chat(**body: Any) -> Ask:
    return parse_chat(json.dumps({"messages": HI, **body}).encode(), SETTINGS)


def refusal(parse: Any, body: bytes) -> dict[str, Any]:
    with pytest.raises(ApiError) as caught:
        parse(body, SETTINGS)
    error: dict[str, Any] = json.loads(caught.value.body())["error"]
    assert error["code"] == caught.value.code
    return error


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hello there", (encode("hello there"),)),
        (["a", "b"], (encode("a"), encode("b"))),
        ([5, 6, 7], ([5, 6, 7],)),
        ([[5], [6, 7]], ([5], [6, 7])),
        ([0, 2**32 - 1], ([0, 2**32 - 1],)),
    ],
)
def test_a_prompt_is_a_text_or_ids_or_a_list_of_either(
    prompt: Any, prompts: tuple[list[int], ...]
) -> None:
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    "prompt",
    ["", [], [""], [[]], [1, "a"], ["a", [1], 2], [-1], [2**32], [1.5], None, {"a": 1}, [True]],
)
def test_other_prompts_are_refused(prompt: Any) -> None:
    error = refusal(parse_completion, json.dumps({"prompt": prompt}).encode())
    assert (error["code"], error["type"]) == (400, "BadRequestError")


def test_content_is_a_text_or_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).prompts == (
        render_chat([("user", "a\nb")]),
    )
    body = {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]}
    assert refusal(parse_chat, json.dumps(body).encode())["code"] == 400


def seen(*parts: dict[str, Any]) -> Ask:
    body = {"messages": [{"role": "user", "content": list(parts)}]}
    return parse_chat(json.dumps(body).encode(), replace(SETTINGS, max_model_len=512))


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def test_items_that_are_no_text_differ_by_their_names_and_not_in_tokens() -> None:
    assert seen(image("x")).prompts == seen(image("y")).prompts
    assert seen(image("x")).media == seen(image("x"), image("x")).media != seen(image("y")).media
    assert len(seen(image("x"), image("y"), image("x")).media) == 2
    (one,) = seen(image("x", uuid="cat")).namespace.media
    (other,) = seen(image("y", uuid="cat")).namespace.media
    assert (one.name, other.name) == ("cat", "cat")


def test_items_stand_where_their_parts_are() -> None:
    text = {"type": "text", "text": "look here"}
    audio = {"type": "input_audio", "input_audio": {"data": "x"}}
    ask = seen(text, image("x"), audio, text)
    first, second = ask.namespace.media
    begin = 1 + len(encode("look here"))
    assert (first.kind, first.start) == ("image", begin)
    assert (second.kind, second.start) == ("audio", begin + TOKENS)
    (prompt,) = ask.prompts
    assert prompt[begin : begin + 2 * TOKENS] == [PLACEHOLDER] * 2 * TOKENS
    assert prompt.count(PLACEHOLDER) == 2 * TOKENS


def test_a_message_may_have_no_content() -> None:
    assert chat(messages=[{"role": "assistant"}]).prompts == (render_chat([("assistant", "")]),)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'"x"', b"\xff", b'{"prompt": 1}'])
@pytest.mark.parametrize("parse", [parse_completion, parse_chat])
def test_what_is_no_request_is_a_400(parse: Any, body: bytes) -> None:
    assert refusal(parse, body)["code"] == 400


def test_no_messages_is_a_400() -> None:
    assert refusal(parse_chat, b'{"messages": []}')["param"] == "messages"


def test_an_unknown_model_is_a_404_and_none_means_the_own() -> None:
    error = refusal(parse_completion, b'{"prompt": "a", "model": "other"}')
    assert error == {
        "message": "The model `other` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }
    assert completion().model == completion(model="tiny").model == "tiny"
    assert completion(model="pirate").namespace.lora == "pirate"


def test_a_context_that_overflows_is_a_400() -> None:
    prompt = list(range(60))
    assert completion(prompt=prompt, max_tokens=4).limits == (4,)
    body = json.dumps({"prompt": prompt, "max_tokens": 5}).encode()
    assert "maximum context length is 64 tokens" in refusal(parse_completion, body)["message"]
    body = json.dumps({"prompt": list(range(64))}).encode()
    assert "maximum context length" in refusal(parse_completion, body)["message"]


def test_stream_options_need_a_stream() -> None:
    body = b'{"prompt": "a", "stream_options": {"include_usage": true}}'
    assert "stream=True" in refusal(parse_completion, body)["message"]
    assert completion(stream=True, stream_options={"include_usage": True}).include_usage
    assert not completion(stream=True, stream_options={}).include_usage


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    body = b'{"prompt": "a", "max_tokens": 3, "min_tokens": 4}'
    message = refusal(parse_completion, body)["message"]
    assert message == "min_tokens must be less than or equal to max_tokens=3, got 4."
    assert completion(max_tokens=3, min_tokens=3).limits == (3,)


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert chat(max_tokens=9, max_completion_tokens=2).limits == (2,)
    assert chat(max_tokens=9).limits == (9,)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "n"])
def test_limits_of_zero_are_refused(field: str) -> None:
    body = json.dumps({"messages": HI, field: 0}).encode()
    assert refusal(parse_chat, body)["code"] == 400


def test_an_answer_without_a_limit_ends_by_itself() -> None:
    free = chat()
    assert free.ends_by_itself
    assert free.limits == chat().limits
    assert chat(min_tokens=50).limits[0] >= 50
    whole = chat(ignore_eos=True)
    assert not whole.ends_by_itself
    assert whole.limits == (64 - len(whole.prompts[0]),)
    assert completion().limits == (16,)
    assert not completion().ends_by_itself


def test_prompts_and_choices_have_a_limit() -> None:
    assert len(completion(prompt=["a"] * MAX_PROMPTS).prompts) == MAX_PROMPTS
    body = json.dumps({"prompt": ["a"] * (MAX_PROMPTS + 1)}).encode()
    assert refusal(parse_completion, body)["param"] == "prompt"
    assert completion(n=MAX_CHOICES).choices == MAX_CHOICES
    body = json.dumps({"prompt": "a", "n": MAX_CHOICES + 1}).encode()
    assert refusal(parse_completion, body)["code"] == 400


def test_a_cache_salt_separates_tenants() -> None:
    assert completion(cache_salt="a").namespace != completion().namespace


def tokenized(body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(answer_tokenize(json.dumps(body).encode(), SETTINGS))
    return answer


def test_tokenize_takes_a_prompt_or_messages() -> None:
    assert tokenized({"prompt": "hello there"}) == {
        "count": 2,
        "max_model_len": 64,
        "tokens": encode("hello there"),
        "token_strs": None,
    }
    assert tokenized({"model": "tiny", "messages": HI})["tokens"] == list(chat().prompts[0])
    bare = tokenized({"messages": HI, "add_generation_prompt": False})["tokens"]
    assert bare == list(chat().prompts[0][:-1])
    assert tokenized({"prompt": ""})["count"] == 0


def test_tokenize_counts_tools_as_the_chat_does() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert tokenized({"messages": HI, "tools": tools})["tokens"] == chat(tools=tools).prompts[0]


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": HI}, {"messages": []}])
def test_tokenize_wants_exactly_one_of_the_two(body: dict[str, Any]) -> None:
    assert refusal(answer_tokenize, json.dumps(body).encode())["code"] == 400


def test_tokenize_knows_only_its_models() -> None:
    assert refusal(answer_tokenize, b'{"prompt": "a", "model": "other"}')["code"] == 404


def ended(ask: Ask) -> Answer:
    answer = answer_to(ask, "7", 1_800_000_000)
    for choice in answer.choices:
        choice.tokens += ANSWER_IDS[:2]
        choice.cached_tokens = 4
        choice.finish_reason = "length"
    return answer


def test_a_completion_stream_has_this_form_to_the_byte() -> None:
    answer = ended(completion(stream=True, stream_options={"include_usage": True}))
    (choice,) = answer.choices
    word = decode(ANSWER_IDS[1:2])
    head = '"id":"cmpl-7","object":"text_completion","created":1800000000,"model":"tiny"'
    assert answer.opening(choice) == b""
    assert answer.piece(choice).decode() == (
        f'data: {{{head},"choices":[{{"index":0,"logprobs":null,"text":"{word}",'
        '"finish_reason":"length","stop_reason":null}]}\n\n'
    )
    assert answer.closing().decode() == (
        f'data: {{{head},"choices":[],"usage":{{"prompt_tokens":1,"total_tokens":3,'
        '"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
        "data: [DONE]\n\n"
    )


def test_a_chat_stream_opens_with_the_role() -> None:
    answer = ended(chat(stream=True, return_token_ids=True))
    (choice,) = answer.choices
    opening = json.loads(answer.opening(choice).removeprefix(b"data: "))
    assert opening["object"] == "chat.completion.chunk"
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    piece = json.loads(answer.piece(choice).removeprefix(b"data: "))["choices"][0]
    assert piece["delta"] == {"content": decode(ANSWER_IDS[1:2])}
    assert piece["token_ids"] == [ANSWER_IDS[1]]
    assert answer.closing() == b"data: [DONE]\n\n"


def test_the_usage_counts_each_prompt_once_and_every_answer() -> None:
    answer = ended(completion(prompt=[[1, 2, 3], [4]], n=2, return_token_ids=True))
    assert [choice.prompt for choice in answer.choices] == [[1, 2, 3], [1, 2, 3], [4], [4]]
    body = json.loads(answer.whole())
    assert body["usage"] == {
        "prompt_tokens": 4,
        "total_tokens": 12,
        "completion_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["choices"][0]["prompt_token_ids"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", -1),
        ("port", 65_536),
        ("host", ""),
        ("name", "a\nb"),
        ("model", ""),
        ("loras", ("tiny",)),
        ("loras", ("a", "a")),
        ("kv_events", "127.0.0.1:5557"),
        ("max_body_bytes", 10),
        ("grace_s", -1.0),
        ("block_tokens", 0),
    ],
)
def test_settings_that_cannot_be_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        EngineSettings(**{"model": "tiny", field: value})


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_only_this_machine_reaches_a_loopback_address(host: str, loopback: bool) -> None:
    assert EngineSettings(host=host).loopback is loopback
