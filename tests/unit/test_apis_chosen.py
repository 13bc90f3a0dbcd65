"""Families that are read only where a configuration chooses them: SGLang's, and calls of gRPC."""

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import BadRequest
from epp.request.apis import catalog
from epp.request.apis.conversation import MEDIA_TOKENS
from epp.request.apis.prompt import Parsed, TextPrompt, TokenPrompt
from epp.request.exchange import Arrival
from epp.request.plan.live import build
from epp.request.plan.resolve import resolve
from tests.fakes import calls
from tests.fakes.desk import ask, open_desk, post

EVERY = catalog.Rules(parsers=frozenset(catalog.FAMILIES.values()))
VLLM = "/vllm.grpc.engine.VllmEngine"
VERTEX = "/google.cloud.aiplatform.v1beta1.PredictionService"
OLDER_VERTEX = "/google.cloud.aiplatform.v1.PredictionService"
CHOSEN = b"""
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}]
requestHandler: {parsers: [{pluginRef: sglanghttp-parser}]}
"""
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}


def packed(*ids: int) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


def sglang(**members: Any) -> Parsed:
    return catalog.parse(post(msgspec.json.encode(members), path="/generate"), EVERY)


def call(path: str, body: bytes, kind: str = "application/grpc") -> Parsed:
    headers = {":method": "POST", ":path": path, "content-type": kind}
    return catalog.parse(Arrival(headers=headers, body=body, has_body=True), EVERY)


def vllm(**members: Any) -> Parsed:
    return call(f"{VLLM}/Generate", calls.framed(calls.generate(**members)))


def vertex(body: Any, method: str = "ChatCompletions", service: str = VERTEX) -> Parsed:
    inner = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return call(f"{service}/{method}", calls.framed(calls.wrapped(inner)))


# SGLang


def test_token_ids_are_the_prompt_as_they_stand() -> None:
    parsed = sglang(input_ids=[5, 70_000, 6], sampling_params={"max_new_tokens": 7})
    assert parsed.prompt == TokenPrompt(packed(5, 70_000, 6))
    assert (parsed.api, parsed.model, parsed.output_tokens) == ("sglang-generate", "", 7)
    assert parsed.whole == "api"


def test_of_several_prompts_the_longest_has_keys_and_the_others_are_load() -> None:
    ids = sglang(input_ids=[[1], [2, 3, 4], []], sampling_params=[{}, {"max_new_tokens": 200}])
    assert ids.prompt == TokenPrompt(packed(2, 3, 4), 1)
    assert ids.output_tokens == 200
    texts = sglang(text=["ab", "cde"])
    assert texts.prompt == TextPrompt(b"cde", (("prompt", b'"cde"'),), other_bytes=2)
    assert texts.output_tokens == 128


def test_the_engine_is_asked_for_the_tokens_of_a_text() -> None:
    assert sglang(text='a "b"').prompt == TextPrompt(b'a "b"', (("prompt", b'"a \\"b\\""'),))


@pytest.mark.parametrize("prompt", [{"input_ids": [1, 2]}, {"text": "ab"}])
def test_prompts_with_different_images_have_different_beginnings(prompt: dict[str, Any]) -> None:
    one, other = sglang(**prompt, image_data="x").prompt, sglang(**prompt, image_data="y").prompt
    assert isinstance(one, TextPrompt)
    assert isinstance(other, TextPrompt)
    assert one.text[:16] != other.text[:16]
    assert (one.tokenize, one.media_tokens) == (None, MEDIA_TOKENS)


def test_what_keeps_caches_apart_keeps_keys_apart() -> None:
    salts = [
        sglang(text="t", **members).cache_salt
        for members in ({}, {"extra_key": "k"}, {"lora_path": "k"}, {"extra_key": ["k"]})
    ]
    assert salts == ["", "k", "\0k", ""]


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"input_embeds": [[0.1]]},
        {"text": "a", "input_ids": [1]},
        {"text": 5},
        {"text": []},
        {"text": ""},
        {"input_ids": []},
        {"input_ids": [[]]},
        {"input_ids": [-1]},
        {"input_ids": [2**32]},
        {"input_ids": "1"},
    ],
)
def test_a_generation_of_unknown_shape_is_the_engines_to_judge(members: dict[str, Any]) -> None:
    parsed = sglang(**members)
    assert (parsed.prompt, parsed.unscored) == (None, "prompt of unknown shape")


def test_a_generation_that_is_no_json_object_is_refused() -> None:
    for body in (b"", b"[1]", b"x"):
        with pytest.raises(BadRequest):
            catalog.parse(post(body, path="/generate"), EVERY)
    assert catalog.parse(post(b'{"text":"\\ud800"}', path="/generate"), EVERY).unscored


# vLLM's calls


def test_ids_of_a_call_are_the_prompt_as_they_stand() -> None:
    parsed = vllm(ids=[1, 2, 300_000], max_tokens=3)
    assert parsed.prompt == TokenPrompt(packed(1, 2, 300_000))
    assert (parsed.api, parsed.model, parsed.output_tokens) == ("grpc-generate", "", 3)


def test_text_of_a_call_is_estimated_for_nobody_can_be_asked() -> None:
    parsed = vllm(text="hé")
    assert parsed.prompt == TextPrompt("hé".encode(), None)
    assert parsed.output_tokens == 16


@pytest.mark.parametrize("field", [7, 10, 11])
def test_calls_with_different_images_have_different_beginnings(field: int) -> None:
    one = vllm(ids=[1, 2], more=calls.octets(field, b"x")).prompt
    other = vllm(ids=[1, 2], more=calls.octets(field, b"y")).prompt
    assert isinstance(one, TextPrompt)
    assert isinstance(other, TextPrompt)
    assert one.text[:16] != other.text[:16]


def test_ids_that_the_engine_will_cut_are_not_exact() -> None:
    cut = calls.octets(4, calls.number(27, 1))
    assert vllm(ids=[1, 2], more=cut).prompt == TextPrompt(packed(1, 2), None)


def test_a_call_without_a_prompt_is_the_engines_to_judge() -> None:
    for parsed in (vllm(), vllm(ids=[]), vllm(text="")):
        assert (parsed.prompt, parsed.unscored) == (None, "no prompt")


def test_an_embedding_is_routed_by_its_size() -> None:
    parsed = call(f"{VLLM}/Embed", calls.framed(calls.embed([1, 2, 3])))
    assert (parsed.prompt, parsed.prompt_tokens, parsed.output_tokens) == (None, 3, 1)


@pytest.mark.parametrize("parser", ["vllmgrpc-parser", "vertexai-parser", "passthrough-parser"])
def test_other_calls_pass_beside_a_parser_of_calls(parser: str) -> None:
    rules = catalog.Rules(parsers=frozenset({parser}))
    check = post(
        calls.framed(b""),
        path="/grpc.health.v1.Health/Check",
        headers={"content-type": "application/grpc"},
    )
    assert catalog.parse(check, rules).unscored == "unknown path"
    with pytest.raises(BadRequest, match="none of the configured parsers"):
        catalog.parse(check, catalog.Rules(parsers=frozenset({"openai-parser"})))


# Vertex AI's calls


@pytest.mark.parametrize("service", [VERTEX, OLDER_VERTEX])
def test_the_chat_within_a_call_reads_like_a_chat(service: str) -> None:
    parsed = vertex({"model": "m"} | CHAT, service=service)
    plain = catalog.parse(
        post(msgspec.json.encode({"model": "m"} | CHAT), path="/chat/completions")
    )
    assert isinstance(parsed.prompt, TextPrompt)
    assert isinstance(plain.prompt, TextPrompt)
    assert (parsed.prompt.text, parsed.prompt.tokenize) == (plain.prompt.text, None)
    assert (parsed.api, parsed.model, parsed.output_tokens) == ("vertex", "m", 9)
    assert parsed.whole == "api"


@pytest.mark.parametrize("method", ["RawPredict", "StreamRawPredict"])
def test_a_raw_call_is_read_by_the_shape_of_its_body(method: str) -> None:
    chat, text = vertex(CHAT, method), vertex({"prompt": [1, 2]}, method)
    assert chat.prompt == vertex(CHAT).prompt
    assert text.prompt == TokenPrompt(packed(1, 2))
    answer = vertex({"input": "hello"}, method).prompt
    assert isinstance(answer, TextPrompt)
    assert b"hello" in answer.text


def test_a_call_needs_no_model_and_no_known_shape() -> None:
    assert vertex(CHAT).model == ""
    assert vertex({"instances": []}, "RawPredict").prompt is None


@pytest.mark.parametrize("method", ["ChatCompletions", "RawPredict"])
@pytest.mark.parametrize("inner", [b"", b"[]", b"\x00\x01"])
def test_a_call_without_a_json_object_is_refused(method: str, inner: bytes) -> None:
    with pytest.raises(BadRequest):
        vertex(inner, method)


# Every call


@pytest.mark.parametrize("path", sorted(catalog.CALLS))
def test_a_compressed_message_is_routed_by_load(path: str) -> None:
    parsed = call(path, calls.framed(b"\x1f\x8b", flag=1))
    assert parsed.prompt is None
    assert parsed.unscored


@pytest.mark.parametrize("path", sorted(catalog.CALLS))
def test_what_is_not_said_to_be_a_call_is_not_read(path: str) -> None:
    assert call(path, b"{}", "application/json").unscored == "not a gRPC call"
    with pytest.raises(BadRequest):
        call(path, b"", "application/grpc+proto")


@pytest.mark.parametrize("path", [*sorted(catalog.CALLS), "/generate"])
@given(body=st.binary(max_size=60), inner=st.binary(max_size=60), frame=st.booleans())
def test_any_bytes_are_understood_or_refused(
    path: str, body: bytes, inner: bytes, *, frame: bool
) -> None:
    kind = "application/json" if path == "/generate" else "application/grpc"
    whole = calls.framed(body + calls.wrapped(inner)) if frame else body
    try:
        parsed = call(path, whole, kind)
    except BadRequest:
        return
    assert (parsed.prompt is None) == bool(parsed.unscored)


# Who reads them


@pytest.mark.parametrize("path", [*sorted(catalog.CALLS), "/generate"])
def test_nobody_reads_them_unless_a_configuration_says_so(path: str) -> None:
    assert catalog.parse(post(b"anything", path=path)).unscored == "unknown path"


async def test_the_parsers_of_the_plan_in_force_are_those_that_read() -> None:
    async with open_desk() as desk:
        body = b'{"input_ids": [1, 2, 3]}'
        await desk.route(body, path="/generate")
        desk.live.swap(build(resolve(CHOSEN, "f")))
        await desk.route(body, path="/generate")
        read = [request.api for _, request, _ in desk.witness.decisions]
        assert read == ["passthrough", "sglang-generate"]
        assert isinstance(await desk.decide(ask()), BadRequest)
