"""A picker with `--tokenizer local`, over an engine that agrees, or does not."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from epp.config.serve import serve_settings
from epp.deciding import director_of
from epp.errors import ConfigError
from epp.framework import EndpointId
from epp.picker import Picker, clock
from epp.request.director import PickDirector
from epp.request.exchange import Route
from epp.request.offload import Offload
from epp.request.tokens import Prefixes
from epp.request.tokens.models import Models
from epp.state.endpoints import Member
from tests.fakes.desk import post
from tests.fakes.tokenizers import write
from tests.timing import scaled


def chat(number: int) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": f"{number} two three " * 99}]}


def picker_of(directory: Path, port: int) -> Picker:
    picker = Picker(
        serve_settings(
            {"endpoints_file": "unused", "tokenizer": "local", "tokenizer_dir": directory}
        )
    )
    member = Member(
        id=EndpointId(picker.pool_id, "pod", port), address=f"127.0.0.1:{port}", has_sidecar=False
    )
    picker.pool.replace([member], clock())
    picker.pool.scrape_failed(member.id, clock(), refused=False)
    return picker


@asynccontextmanager
async def engine(tokens: Callable[[dict[str, object]], list[int]]) -> AsyncIterator[int]:
    """Answers `/tokenize`."""

    async def tokenize(request: web.Request) -> web.Response:
        return web.json_response({"tokens": tokens(await request.json())})

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def page(picker: Picker) -> str:
    picker.metrics.refresh(clock())
    return picker.metrics.text().decode()


async def until(picker: Picker, director: PickDirector, line: str) -> None:
    """Requests come, one after another, until the metrics have this line."""
    numbers = itertools.count()
    async with asyncio.timeout(scaled(20)):
        while line not in page(picker):
            arrival = post(chat(next(numbers)), path="/v1/chat/completions")
            assert isinstance(await director.decide(arrival), Route)
            await asyncio.sleep(0.05)


def same(directory: Path) -> Callable[[dict[str, object]], list[int]]:
    models = Models(directory, Prefixes(1 << 20, block_tokens=64, max_keys=64))
    models.load()

    def tokens(body: dict[str, object]) -> list[int]:
        body.pop("model")
        local = models.of("m")
        assert local is not None
        ids = local.ids(tuple((name, msgspec.json.encode(raw)) for name, raw in body.items()))
        return [int.from_bytes(ids[at : at + 4], "little") for at in range(0, len(ids), 4)]

    return tokens


@pytest.mark.parametrize("agrees", [True, False])
async def test_tokens_are_made_here_as_long_as_the_engine_agrees(
    tmp_path: Path, agrees: bool
) -> None:
    write(tmp_path / "m")
    tokens = same(tmp_path) if agrees else lambda body: list(range(500))
    async with engine(tokens) as port, aiohttp.ClientSession() as session:
        picker = picker_of(tmp_path, port)
        with Offload() as offload:
            async with asyncio.TaskGroup() as tasks:
                director = director_of(picker, session, offload, tasks.create_task)
                await until(picker, director, 'epp_token_lookups_total{how="local"}')
                down = 0.0 if agrees else 1.0
                line = f'epp_token_models_stepped_down{{to="engine"}} {down}'
                await until(picker, director, line)
    assert 'epp_token_text_bytes_total{text="new"}' in page(picker)


async def test_a_directory_without_models_stops_the_start(tmp_path: Path) -> None:
    picker = picker_of(tmp_path, 1)
    with Offload() as offload, pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        async with aiohttp.ClientSession() as session:
            director_of(picker, session, offload, lambda work: pytest.fail("spawned"))


@pytest.mark.parametrize("flags", [{"tokenizer": "local"}, {"tokenizer_dir": "there"}])
def test_the_directory_and_its_use_need_each_other(flags: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="need each other"):
        serve_settings({"endpoints_file": "unused", **flags})
