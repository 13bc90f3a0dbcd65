"""Faults of group C on the request's side: what enters the keys of a prompt, and what never may."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from epp.request.apis.openai import CHAT, chat, completions
from epp.request.apis.prompt import Fields, Parsed
from epp.request.offload import Offload
from epp.request.tokens import Prefixes, Tokenised, Tokenizer, Tokens
from epp.request.tokens.files import ModelFiles
from epp.request.tokens.local import LocalModel
from epp.state.engine_blocks import EngineBlocks
from epp.state.events import decode
from tests.fakes.kv_publisher import payload, stored_map
from tests.fakes.tokenizers import CHATML, file_of
from tests.timing import scaled

BLOCK = 16
LONG = "one two three four five six seven eight nine ten. " * 20
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def nobody(model: str, fields: Fields, /) -> bytes:
    """An engine that would say something else of every prompt."""
    return msgspec.json.encode({"tokens": list(range(1000))})


@asynccontextmanager
async def tokens(*, engine: bool = False, render: Tokenizer | None = None) -> AsyncIterator[Tokens]:
    """Made here, or asked of an engine, or of who renders chats."""
    prefixes = Prefixes(1 << 20, block_tokens=BLOCK, max_keys=256)
    local = LocalModel(ModelFiles(file_of("byte-level"), {"default": CHATML}), prefixes)
    with Offload() as offload:
        async with asyncio.TaskGroup() as tasks:
            yield Tokens(
                tokenizer=nobody if engine else None,
                renderers={} if render is None else {CHAT: render},
                media=True,
                local=None if engine else lambda model: local,
                prefixes=prefixes,
                spawn=tasks.create_task,
                offload=offload,
                clock=lambda: 0.0,
                block_tokens=BLOCK,
            )


async def found(some: Tokens, parsed: Parsed) -> Tokenised:
    assert parsed.prompt is not None
    return await some.resolve(parsed, parsed.prompt, wait_s=scaled(1.0))


def asked(messages: Any = None, **members: Any) -> Parsed:
    turns = messages or [{"role": "user", "content": LONG}]
    body = {"model": "m", "messages": turns, **members}
    return chat("/v1/chat/completions", json.dumps(body).encode())


def shared(one: Tokenised, other: Tokenised) -> int:
    """Blocks that the two have in common, from the beginning."""
    pairs = enumerate(zip(one.keys, other.keys, strict=False))
    most = min(len(one.keys), len(other.keys))
    return next((at for at, (a, b) in pairs if a != b), most)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 32])
async def test_C12_text_has_a_key_for_each_full_block_and_none_for_the_rest(count: int) -> None:
    """Protected by the ids behind the last full block being kept apart."""
    body = {"model": "m", "prompt": "~" * count, "add_special_tokens": False}
    async with tokens() as some:
        tokenised = await found(some, completions("/v1/completions", json.dumps(body).encode()))
    assert (tokenised.tokens, tokenised.exact) == (count, True)
    assert len(tokenised.keys) == count // BLOCK


async def test_C13_a_salt_parts_prompts_whose_text_is_remembered() -> None:
    """Protected by the salt being part of what a remembered prompt is found by."""
    async with tokens() as some:
        salted = [await found(some, asked(cache_salt=salt)) for salt in ("s1", "s2", "")]
        again = await found(some, asked(cache_salt="s1"))
    assert len({key for one in salted for key in one.keys}) == 3 * len(salted[0].keys) > 30
    assert again.keys == salted[0].keys
    assert again.how == "cached"


def picture(data: str) -> list[dict[str, Any]]:
    url = {"url": f"data:image/png;base64,{data}"}
    parts = [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": url}]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": LONG}]}]


@pytest.mark.parametrize("engine", [False, True])
async def test_C15_an_image_is_part_of_a_prompt_that_no_engines_blocks_can_match(
    engine: bool,
) -> None:
    """Protected by a prompt with media never being tokenized as text."""
    async with tokens(engine=engine) as some:
        one, other = [await found(some, asked(picture(data))) for data in ("AAAA", "BBBB")]
        text = await found(some, asked())
    assert (one.exact, other.exact) == (False, False)
    assert 0 < shared(one, other) < len(one.keys)
    assert not set(one.keys) & set(text.keys), "estimates never meet an engine's blocks"


@pytest.mark.parametrize("image", ["a cat", "a dog"])
async def test_C15_what_the_engine_holds_of_an_image_is_found_by_its_rendering(image: str) -> None:
    """Protected by the media of an engine's answer entering the keys by their places."""
    ids, begins = list(range(1, 8 * BLOCK + 1)), 3 * BLOCK + 5
    extra = [None] * 3 + [[["a cat", begins - at * BLOCK]] for at in range(3, 6)] + [None] * 2
    event = stored_map(range(1, 9), ids, BLOCK, extra_keys=extra)
    holder = EngineBlocks("m", BLOCK)
    holder.apply(decode(payload([event])).events)

    async def render(model: str, fields: Fields, /) -> bytes:
        places = {"image": [{"offset": begins, "length": 2 * BLOCK}]}
        features = {"mm_hashes": {"image": [image]}, "mm_placeholders": places}
        return msgspec.json.encode({"token_ids": ids, "features": features})

    body = json.dumps({"model": "m", "messages": picture("AAAA")}).encode()
    parsed = chat("/v1/chat/completions", body)
    assert parsed.prompt is not None
    async with tokens(engine=True, render=render) as some:
        found = await some.resolve(parsed, parsed.prompt, wait_s=scaled(1.0), body=body)
    assert found.exact
    held = [key in holder.present() for key in found.keys]
    assert held == [True] * 8 if image == "a cat" else [True] * 3 + [False] * 5


async def test_C15_five_megabytes_of_an_image_cost_little() -> None:
    """Protected by media entering by a digest."""
    parsed = asked(picture("A" * 5 * 2**20))
    async with tokens() as some:
        began = time.process_time()
        large = await found(some, parsed)
        assert time.process_time() - began < scaled(0.05)
        small = await found(some, asked(picture("A")))
    assert large.tokens == small.tokens


@pytest.mark.parametrize(
    ("members", "others"),
    [
        ({}, {"tools": [TOOL]}),
        ({"tools": [TOOL]}, {"tools": [{**TOOL, "function": {"name": "g"}}]}),
        ({}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({}, {"add_generation_prompt": False}),
    ],
)
async def test_C16_whatever_changes_the_prompt_changes_its_tokens(
    members: dict[str, Any], others: dict[str, Any]
) -> None:
    """Protected by the template being given all that the request says."""
    async with tokens() as some:
        one, other = await found(some, asked(**members)), await found(some, asked(**others))
    assert one.exact
    assert other.exact
    assert one.tokens != other.tokens
    tools = "tools" in others
    assert (shared(one, other) < 6) is tools, "tools come first, the rest comes last"


async def test_C16_the_order_of_a_messages_members_changes_nothing() -> None:
    """Protected by messages being read for what they say."""
    async with tokens() as some:
        one = await found(some, asked([{"role": "user", "content": LONG}]))
        other = await found(some, asked([{"content": LONG, "role": "user"}]))
    assert one.keys == other.keys != ()
