"""Tokens made here are those of a real vLLM, whatever a chat has in it.

A server that only renders and tokenizes is enough, and starts sooner than an engine. It serves a
tokenizer and a template with tools, as models of the day have them.
"""

import asyncio
import json
import os
import random
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from epp.request.apis import messages, responses
from epp.request.apis.openai import CHAT, chat
from epp.request.apis.prompt import TextPrompt
from epp.request.tokens import Prefixes
from epp.request.tokens.engine import answered
from epp.request.tokens.files import read
from epp.request.tokens.local import LocalModel
from epp.request.tokens.rendering import PATHS, question
from epp.request.tokens.tokenised import UnrenderableError
from epp.sim.fleets import vllm
from epp.sim.fleets.ports import HOST, free_ports
from epp.state.blocks import pack
from tests.fakes.chats import chats
from tests.fakes.tokenizers import fields, write
from tests.timing import scaled

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

MODEL = "tiny"
CHATS = 150
START_S = 200
ENV = {
    "VLLM_TARGET_DEVICE": "cpu",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True, slots=True)
class Renderer:
    url: str
    local: LocalModel
    session: aiohttp.ClientSession

    async def ask(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        async with self.session.post(self.url + path, json={"model": MODEL, **body}) as answer:
            return answer.status, await answer.read()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def renderer(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Renderer]:
    real = vllm.find()
    folder = write(tmp_path_factory.mktemp("model"), eos_token="<|im_end|>")
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_bytes((real.model / name).read_bytes())
    (port,) = free_ports(1, random.SystemRandom())
    process = await _started(real.python.with_name("vllm"), folder, port)
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://{HOST}:{port}"
            await _answers(process, session, url)
            prefixes = Prefixes(1 << 20, block_tokens=64, max_keys=2048)
            yield Renderer(url, LocalModel(read(folder), prefixes), session)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _started(command: Path, folder: Path, port: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *(str(command), "launch", "render", str(folder), "--served-model-name", MODEL),
        *("--host", HOST, "--port", str(port), "--dtype", "float32"),
        env={**os.environ, **ENV},
        stdout=DEVNULL,
        stderr=DEVNULL,
    )


async def _answers(process: Process, session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(scaled(START_S)):
        while True:
            assert process.returncode is None, "the renderer has ended"
            try:
                async with session.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.5)


async def test_every_chat_that_is_rendered_here_has_the_engines_tokens(renderer: Renderer) -> None:
    counts: Counter[str] = Counter()
    for body in chats(random.Random(41), CHATS):
        whole = json.dumps({"model": MODEL, **body}, ensure_ascii=False).encode()
        prompt = chat("/v1/chat/completions", whole).prompt
        assert isinstance(prompt, TextPrompt)
        assert prompt.tokenize is not None
        asked = {name: json.loads(raw) for name, raw in prompt.tokenize}
        status, answer = await renderer.ask("/tokenize", asked)
        if status != 200:
            counts["refused"] += 1
            continue
        theirs = answered(answer).ids
        try:
            ours = renderer.local.ids(prompt.tokenize)
        except UnrenderableError:
            counts["left to the engine"] += 1
            continue
        assert ours == theirs, body
        counts["equal"] += 1
        counts["with tools"] += "tools" in body
        status, answer = await renderer.ask("/v1/chat/completions/render", body)
        if status == 200:  # tools need a parser to be served, not to be rendered
            assert pack(json.loads(answer)["token_ids"]) == ours, body
            counts["as requested"] += 1
    assert counts["equal"] > CHATS // 2, counts
    assert counts["with tools"] > CHATS // 8, counts
    assert counts["as requested"] > CHATS // 4, counts
    assert counts["left to the engine"] < CHATS // 20, counts


async def test_completions_have_the_engines_tokens(renderer: Renderer) -> None:
    for text in ("", "Größe", "  two  blanks ", "<|im_start|>user\nhi", "🙂" * 300):
        for special in (True, False):
            asked = {"prompt": text, "add_special_tokens": special}
            status, answer = await renderer.ask("/tokenize", asked)
            assert status == 200
            assert renderer.local.ids(fields(**asked)) == answered(answer).ids


async def test_whole_requests_are_rendered_without_what_shapes_no_prompt(
    renderer: Renderer,
) -> None:
    text = "Größe: 3 km², 你好 " * 20
    turn = {"role": "user", "content": text}
    plain = {"messages": [turn]}
    answering = {"max_tokens": 7, "temperature": 0.5, "stream": True, "stop": ["x"], "user": "u"}
    requests = {
        CHAT: {**plain, **answering, "max_completion_tokens": 5},
        messages.API: {**plain, "max_tokens": 7, "stop_sequences": ["x"], "stream": True},
        responses.API: {"input": [turn], "max_output_tokens": 7, "store": False},
    }
    status, tokenized = await renderer.ask("/tokenize", plain)
    assert status == 200
    words = renderer.local.ids(fields(prompt=text, add_special_tokens=False))[8:-8]
    for api, body in requests.items():
        asked = question(api, json.dumps({"model": MODEL, **body}).encode())
        assert asked is not None
        members = {name: json.loads(raw) for name, raw in asked}
        status, answer = await renderer.ask(PATHS[api], members)
        assert (api, status) == (api, 200), answer
        rendered = answered(answer)
        assert rendered.media == ()
        # Messages and responses become a chat in a way that is the engine's own.
        assert words in rendered.ids, api
        assert api != CHAT or rendered.ids == answered(tokenized).ids
