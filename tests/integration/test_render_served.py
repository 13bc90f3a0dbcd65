"""A picker asks its engines, or the server that it was given, to render requests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.config.serve import serve_settings
from epp.deciding import director_of
from epp.errors import ConfigError
from epp.framework import EndpointId
from epp.picker import Picker, clock
from epp.request.exchange import Route
from epp.request.offload import Offload
from epp.request.tokens.rendering import PATHS
from epp.state.endpoints import Member
from tests.fakes.desk import post

TURN = {"role": "user", "content": "one two three " * 99}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}


@asynccontextmanager
async def server(*, renders: bool) -> AsyncIterator[tuple[int, list[str]]]:
    """Answers `/tokenize`, and renders or says that it does not; the paths that were asked."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/tokenize":
            return web.json_response({"tokens": list(range(200))})
        if not renders:
            return web.Response(status=403)
        return web.json_response({"token_ids": list(range(300)), "features": None})

    app = web.Application()
    for path in ("/tokenize", *PATHS.values()):
        app.router.add_post(path, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield int(runner.addresses[0][1]), asked
    finally:
        await runner.cleanup()


def picker_of(engine: int, **settings: Any) -> Picker:
    picker = Picker(serve_settings({"endpoints_file": "unused", **settings}))
    member = Member(
        id=EndpointId(picker.pool_id, "pod", engine),
        address=f"127.0.0.1:{engine}",
        has_sidecar=False,
    )
    picker.pool.replace([member], clock())
    picker.pool.scrape_failed(member.id, clock(), refused=False)
    return picker


async def found(picker: Picker, *bodies: tuple[str, dict[str, Any]]) -> dict[str, float]:
    """How the tokens of these requests were found, by the metrics."""
    with Offload() as offload:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            director = director_of(picker, session, offload, tasks.create_task)
            for path, body in bodies:
                assert isinstance(await director.decide(post(body, path=path)), Route)
    picker.metrics.refresh(clock())
    lines = picker.metrics.text().decode().splitlines()
    told = [line for line in lines if line.startswith("epp_token_lookups_total{")]
    return {line.split('"')[1]: float(line.rsplit(" ", 1)[1]) for line in told}


CHAT = ("/v1/chat/completions", {"model": "m", "messages": [TURN]})
MESSAGES = ("/v1/messages", {"model": "m", "messages": [TURN], "max_tokens": 9})
SEEN = ("/v1/chat/completions", {"model": "m", "messages": [{**TURN, "content": [IMAGE]}]})


@pytest.mark.parametrize("renders", [True, False])
async def test_engines_render_where_they_do(renders: bool) -> None:
    async with server(renders=renders) as (port, asked):
        counts = await found(picker_of(port), CHAT, MESSAGES, SEEN)
    if renders:
        assert counts == {"rendered": 2, "not tokenizable": 1}
        assert asked == ["/v1/chat/completions/render", "/v1/messages/render"]
    else:
        assert counts == {"engine": 1, "not tokenizable": 2}
        assert asked[:2] == ["/v1/chat/completions/render", "/tokenize"]


async def test_a_server_that_only_renders_is_asked_instead_and_for_images_too() -> None:
    async with server(renders=False) as (port, asked), server(renders=True) as (other, rendered):
        picker = picker_of(port, render_url=f"http://127.0.0.1:{other}")
        counts = await found(picker, CHAT, MESSAGES, SEEN)
    assert counts == {"rendered": 3}
    assert asked == []
    assert len(rendered) == 3


@pytest.mark.parametrize(
    "flags", [{"render_url": "host:80"}, {"render_url": "http://h", "tokenizer": "estimate"}]
)
def test_a_server_to_render_is_a_url_and_needs_exact_tokens(flags: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"render.url"):
        serve_settings({"endpoints_file": "unused", **flags})
