"""Engines, and servers that only render, are asked for the tokens of whole requests."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from epp.request.apis import messages, openai, responses
from epp.request.apis.features import MAX_ITEMS, media_of
from epp.request.apis.generate import generate
from epp.request.apis.prompt import Fields, Parsed, TextPrompt, TokenPrompt
from epp.request.offload import Offload
from epp.request.tokens import Tokenised, Tokens
from epp.request.tokens.breakers import ABSENT_S
from epp.request.tokens.engine import (
    TokenizerAbsentError,
    TokenizerError,
    TokenizerRefusedError,
    answered,
)
from epp.request.tokens.rendering import MAX_BODY_BYTES, PATHS, question
from epp.state import blocks
from epp.state.blocks import Media, media_identity

IDS = list(range(500, 700))
IMAGE = {
    "mm_hashes": {"image": ["a cat"], "audio": ["a song"]},
    "mm_placeholders": {
        "image": [{"offset": 70, "length": 40}],
        "audio": [{"offset": 130, "length": 9}],
    },
    "kwargs_data": None,
}
MEDIA = (Media(media_identity("a cat"), 70), Media(media_identity("a song"), 130))
LIMITED = {messages.API: {"max_tokens": 1}}
"""Engines refuse a message without one."""
PARSERS = {
    openai.CHAT: openai.chat,
    messages.API: messages.messages,
    responses.API: responses.responses,
}


class Endpoint:
    """One of an engine; notes what it is asked and answers as it is told."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def __call__(self, model: str, fields: Fields, /) -> bytes:
        assert model == "m"
        self.asked.append({name: json.loads(raw) for name, raw in fields})
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return msgspec.json.encode(self.answer)


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.rendered = Endpoint({"request_id": "r", "token_ids": IDS, "features": None})
        self.tokenized = Endpoint({"tokens": IDS[:100]})
        self.tokens: Tokens

    async def ask(self, api: str = openai.CHAT, **members: Any) -> Tokenised:
        return await self.send(api, json.dumps(body(api, **members)).encode())

    async def send(self, api: str, whole: bytes, wait_s: float = 1.0) -> Tokenised:
        parsed = PARSERS[api]("/", whole)
        assert parsed.prompt is not None
        return await self.tokens.resolve(parsed, parsed.prompt, wait_s=wait_s, body=whole)


def body(api: str, **members: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "hello " * 60}]
    return {"model": "m", "input" if api == responses.API else "messages": turns, **members}


def picture(data: str) -> list[dict[str, Any]]:
    url = {"url": f"data:image/png;base64,{data}"}
    parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": url}]
    return [{"role": "user", "content": parts}]


@asynccontextmanager
async def bench(*, media: bool = False) -> AsyncIterator[Bench]:
    one = Bench()
    with Offload() as offload:
        async with asyncio.TaskGroup() as tasks:
            one.tokens = Tokens(
                tokenizer=one.tokenized,
                renderers=dict.fromkeys(PATHS, one.rendered),
                media=media,
                spawn=tasks.create_task,
                offload=offload,
                clock=lambda: one.now,
            )
            yield one


def keys_of(media: tuple[Media, ...] = ()) -> tuple[int, ...]:
    return blocks.token_keys(IDS, blocks.seed_of("m"), media=media)


@pytest.mark.parametrize("api", PATHS)
async def test_each_api_gets_the_tokens_that_its_engine_renders(api: str) -> None:
    async with bench() as one:
        first = await one.ask(api, temperature=0.5)
        again = await one.ask(api, temperature=0.7, stream=True)
    assert first == Tokenised(len(IDS), True, keys_of(), "rendered")
    assert (again.keys, again.how) == (first.keys, "cached")
    assert one.tokenized.asked == []
    (asked,) = one.rendered.asked
    assert asked.pop("mm_payload") == "none"
    assert {"model": "m", **asked} == body(api, **LIMITED.get(api, {}))


async def test_images_count_by_the_names_and_places_that_the_engine_gives_them() -> None:
    async with bench(media=True) as one:
        one.rendered.answer["features"] = IMAGE
        found = await one.ask(messages=picture("AAAA"))
    assert found == Tokenised(len(IDS), True, keys_of(MEDIA), "rendered")
    plain = keys_of()
    assert [a == b for a, b in zip(found.keys, plain, strict=True)] == [True, False, False]


async def test_an_engine_is_not_made_to_render_images() -> None:
    async with bench() as one:
        found = await one.ask(messages=picture("AAAA"))
    assert (found.exact, found.how) == (False, "not tokenizable")
    assert one.rendered.asked == one.tokenized.asked == []


async def test_an_engine_that_does_not_render_is_asked_again_after_a_pause_only() -> None:
    async with bench() as one:
        one.rendered.error = TokenizerAbsentError("status 403")
        hows = [(await one.ask(user=str(n), seed=n, top_p=1)).how for n in range(3)]
        assert hows == ["engine", "cached", "cached"]
        assert len(one.rendered.asked) == 1
        one.now += ABSENT_S - 1
        await one.ask()
        assert len(one.rendered.asked) == 1
        one.now += 2
        one.rendered.error = None
        assert (await one.ask()).how == "cached", "nobody waits for who looks whether it is there"
        await asyncio.sleep(0.02)
        assert (await one.ask()).keys == keys_of()


@pytest.mark.parametrize("error", [TokenizerRefusedError("no parser"), TokenizerError("broken")])
async def test_what_cannot_be_rendered_is_tokenized(error: Exception) -> None:
    async with bench() as one:
        one.rendered.error = error
        found = await one.ask(tools=[{"type": "function"}])
    assert (found.tokens, found.exact, found.how) == (100, True, "engine")


async def test_a_late_rendering_leaves_no_time_for_another_question() -> None:
    async with bench() as one:
        one.rendered.gate = asyncio.Event()
        whole = json.dumps(body(openai.CHAT)).encode()
        found = await one.send(openai.CHAT, whole, wait_s=0.01)
        assert (found.exact, found.how) == (False, "late")
        one.rendered.gate.set()
        await asyncio.sleep(0.02)
        assert (await one.send(openai.CHAT, whole)).how == "cached"
    assert one.tokenized.asked == []


@pytest.mark.parametrize(("more", "asked"), [(0, 1), (1, 0)])
async def test_the_size_of_what_is_rendered_is_bounded(more: int, asked: int) -> None:
    whole = json.dumps(body(openai.CHAT)).encode()
    whole += b" " * (MAX_BODY_BYTES + more - len(whole))
    async with bench() as one:
        found = await one.send(openai.CHAT, whole)
    assert len(one.rendered.asked) == asked
    assert found.how == ("rendered" if asked else "engine")


async def test_a_body_that_cannot_be_read_is_not_rendered() -> None:
    prompt = openai.chat("/", json.dumps(body(openai.CHAT)).encode())
    assert isinstance(prompt.prompt, TextPrompt)
    async with bench() as one:
        for odd in (b"", b"\x1f\x8b compressed", b"[1]"):
            found = await one.tokens.resolve(prompt, prompt.prompt, wait_s=1.0, body=odd)
            assert found.tokens == 100
    assert one.rendered.asked == []


def test_only_what_shapes_a_prompt_is_part_of_the_question() -> None:
    shaped = {"messages": [], "tools": [], "chat_template_kwargs": {}, "reasoning_effort": "low"}
    rest = {"model": "m", "max_tokens": 5, "kv_transfer_params": {}, "user": "u", "stop": "x"}
    names = [
        name for name, _ in question(openai.CHAT, json.dumps({**rest, **shaped}).encode()) or ()
    ]
    assert names == [*sorted(shaped), "mm_payload"]


@pytest.mark.parametrize("cut", ["truncate_prompt_tokens", "truncation"])
def test_the_limit_of_an_answer_shapes_a_prompt_that_is_cut_to_fit(cut: str) -> None:
    whole = json.dumps({"max_tokens": 5, cut: -1}).encode()
    names = [name for name, _ in question(openai.CHAT, whole) or ()]
    assert names == [*sorted(["max_tokens", cut]), "mm_payload"]


@pytest.mark.parametrize(
    "odd",
    [
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {}},
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": []}},
        {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {"image": [{"offset": -1}]}},
        {"mm_hashes": {"image": ["a"]}},
        {
            "mm_hashes": {"image": ["a"] * (MAX_ITEMS + 1)},
            "mm_placeholders": {"image": [{"offset": 1}] * (MAX_ITEMS + 1)},
        },
        [1],
    ],
)
def test_media_without_name_or_place_are_no_prompt(odd: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the decoder has sentences of its own
        media_of(msgspec.Raw(json.dumps(odd).encode()))
    with pytest.raises(TokenizerError):
        answered(json.dumps({"token_ids": [1], "features": odd}).encode())
    whole = {"token_ids": [1, 2], "features": odd, "sampling_params": {}}
    assert isinstance(generate("/", json.dumps(whole).encode()).prompt, TextPrompt)


def test_as_many_media_as_the_limit_fit() -> None:
    many = {
        "mm_hashes": {"image": ["a"] * MAX_ITEMS},
        "mm_placeholders": {"image": [{"offset": at} for at in range(MAX_ITEMS)]},
    }
    assert len(media_of(msgspec.Raw(json.dumps(many).encode()))) == MAX_ITEMS


def test_token_ids_with_named_media_are_exact() -> None:
    whole = {"token_ids": IDS, "features": IMAGE, "sampling_params": {}}
    parsed: Parsed = generate("/inference/v1/generate", json.dumps(whole).encode())
    assert parsed.prompt == TokenPrompt(blocks.pack(IDS), media=MEDIA)


def test_token_ids_whose_media_the_engine_resolves_are_estimated() -> None:
    whole = {"token_ids": IDS, "content_parts": [{"type": "image_url"}], "sampling_params": {}}
    parsed = generate("/inference/v1/generate", json.dumps(whole).encode())
    assert isinstance(parsed.prompt, TextPrompt)
    assert parsed.prompt.tokenize is None


def test_a_medium_that_the_client_names_is_the_same_wherever_its_data_comes_from() -> None:
    def asked(**part: Any) -> TextPrompt:
        turn = {"role": "user", "content": [{"type": "image_url", **part}]}
        whole = json.dumps({"model": "m", "messages": [turn]}).encode()
        prompt = openai.chat("/", whole).prompt
        assert isinstance(prompt, TextPrompt)
        return prompt

    first = asked(image_url={"url": "https://one.example/cat.png"}, uuid="cat")
    assert asked(image_url=None, uuid="cat") == first
    assert asked(image_url={"url": "https://one.example/cat.png"}, uuid="dog") != first
    assert asked(image_url={"url": "https://one.example/cat.png"}) != first
    assert first.media_tokens > 0
