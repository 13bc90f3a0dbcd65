"""Prompts with images, from the engine that renders them to the engines that hold their blocks.

Engines write the same tokens for every image. What an image is, the picker has from who renders,
and the engines' events say it again: only there two prompts differ whose texts are the same.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epp.bodies.sharing import Api
from epp.sim.serving.server import EngineServer
from tests.fakes.engines import running_engine
from tests.fakes.picker_process import PickerProcess, cluster_process
from tests.fakes.plain_pool import REPLAY
from tests.fakes.probed import endpoints_file, post, until_matches

OWN = 64
BEFORE = "Look at this picture of the harbour, and say what you see in it. " * 12
AFTER = "Say it in few words, name the ships, and count the people on the quay. " * 12
Body = dict[str, Any]


def chat(*images: Body) -> Body:
    """The texts are the same whatever the images are."""
    parts = [{"type": "text", "text": BEFORE}, *images, {"type": "text", "text": AFTER}]
    return {"model": "sim", "messages": [{"role": "user", "content": parts}], "max_tokens": 1}


def image(url: str, **more: Any) -> Body:
    return {"type": "image_url", "image_url": {"url": f"https://example.org/{url}"}, **more}


def source(data: str) -> Body:
    """An image as `/v1/messages` has it."""
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


@dataclass(frozen=True)
class Pool:
    """A picker that has requests rendered, images included, and two engines that differ in their
    blocks."""

    picker: PickerProcess
    engines: tuple[EngineServer, EngineServer]

    async def computed(self, body: Body, api: Api = Api.CHAT) -> list[int]:
        """Let each engine compute a prompt; how many of its tokens that had cached."""
        used = [(await post(one.url + api, body))["usage"] for one in self.engines]
        if api is Api.MESSAGES:
            return [usage["cache_read_input_tokens"] for usage in used]
        return [usage["prompt_tokens_details"]["cached_tokens"] for usage in used]

    async def places(self, body: Body) -> tuple[int, list[int]]:
        """Tokens of a prompt, and where its images begin."""
        told = await post(f"{self.engines[0].url}{Api.CHAT}/render", body)
        found = told["features"]["mm_placeholders"]["image"]
        return len(told["token_ids"]), [one["offset"] for one in found]

    async def knows(self, body: Body, tokens: int, api: Api = Api.CHAT) -> None:
        """Wait until the picker counts the own blocks that lie in full blocks of the engines."""
        ends = (tokens // size for size in (one.settings.block_tokens for one in self.engines))
        found = [
            end * one.settings.block_tokens // OWN * OWN
            for end, one in zip(ends, self.engines, strict=True)
        ]
        await until_matches(self.picker, body, *zip(self.engines, found, strict=True), path=api)

    async def counts_before(self, body: Body, at: int, api: Api = Api.CHAT) -> None:
        """The picker counts the own blocks before a place; and that is what there is to count."""
        wanted = [(one, at // OWN * OWN) for one in self.engines]
        await until_matches(self.picker, body, *wanted, path=api)
        blocks = [one.settings.block_tokens for one in self.engines]
        assert await self.computed(body, api) == [at // size * size for size in blocks]


@asynccontextmanager
async def pool(directory: Path) -> AsyncIterator[Pool]:
    async with (
        running_engine(name="small", block_tokens=16, hash_seed=3, **REPLAY) as small,
        running_engine(name="odd", block_tokens=48, hash_seed=4, **REPLAY) as odd,
    ):
        flags = ("--endpoints-file", str(endpoints_file(directory, [small, odd])))
        flags += ("--tokenizer", "engine", "--render-url", small.url)
        async with cluster_process(directory, *flags) as picker:
            yield Pool(picker, (small, odd))


async def test_another_image_under_the_same_text_earns_nothing_from_its_place_on(
    tmp_path: Path,
) -> None:
    cat, dog, both = chat(image("cat")), chat(image("dog")), chat(image("owl"), image("cat"))
    async with pool(tmp_path) as served:
        size, (at,) = await served.places(cat)
        assert at > OWN
        assert at % OWN > 0, "it begins within an own block"
        assert await served.computed(cat) == [0, 0]
        await served.knows(cat, size)
        await served.counts_before(dog, at)
        await served.knows(dog, size)

        await served.computed(both)
        size, (first, second) = await served.places(both)
        await served.knows(both, size)
        await served.counts_before(chat(image("owl"), image("dog")), second)
        await served.counts_before(chat(image("elk"), image("owl")), first)
        assert await served.picker.metric('epp_token_lookups_total{how="rendered"}') > 0


async def test_an_image_is_what_the_client_calls_it_wherever_it_lies(tmp_path: Path) -> None:
    async with pool(tmp_path) as served:
        named, moved = chat(image("cat", uuid="my cat")), chat(image("copy", uuid="my cat"))
        size, (at,) = await served.places(named)
        await served.computed(named)
        await served.knows(moved, size)
        assert await served.computed(moved) == [(size - 1) // each * each for each in (16, 48)]
        await served.counts_before(chat(image("cat", uuid="another/cat")), at)

        await served.computed(chat(source("cat")), Api.MESSAGES)
        await served.knows(chat(source("cat")), size, Api.MESSAGES)
        await served.counts_before(chat(source("dog")), at, Api.MESSAGES)
