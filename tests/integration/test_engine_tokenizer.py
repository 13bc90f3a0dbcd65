"""The client of `/tokenize` against real sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import cycle

import aiohttp
import pytest
from aiohttp import web

from epp.request.tokens import engine as tokenizer
from epp.request.tokens.engine import (
    EngineTokenizer,
    TokenizerAbsentError,
    TokenizerError,
    TokenizerRefusedError,
)

RENDER = "/v1/chat/completions/render"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def engine(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/tokenize", handler)
    app.router.add_post(RENDER, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(*addresses: str | None, path: str = tokenizer.TOKENIZE) -> bytes:
    turn = cycle(addresses)
    async with aiohttp.ClientSession() as session:
        client = EngineTokenizer(session, lambda: next(turn), path)
        answer = await client("m", (("prompt", b'"hi"'), ("tools", b"[ 1 ]")))
        return tokenizer.answered(answer).ids


async def closed_port() -> str:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    server.close()
    await server.wait_closed()
    return f"{host}:{port}"


async def test_the_clients_own_json_goes_along_as_it_is() -> None:
    seen: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(await request.read())
        return web.json_response({"count": 2, "max_model_len": 9, "tokens": [7, 258]})

    async with engine(answer) as address:
        assert await ask(address) == b"\7\0\0\0\2\1\0\0"
    assert seen == [b'{"model":"m","prompt":"hi","tools":[ 1 ]}']


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_prompt_that_the_engine_refuses_is_not_the_tokenizers_fault(status: int) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    async with engine(answer) as address:
        with pytest.raises(TokenizerRefusedError):
            await ask(address)


@pytest.mark.parametrize("status", [301, 401, 404, 500, 503])
async def test_every_other_status_is_and_redirects_are_not_followed(status: int) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"location": "/elsewhere"})

    async with engine(answer) as address:
        with pytest.raises(TokenizerError):
            await ask(address)


async def test_another_endpoint_is_asked_when_one_refuses_the_connection() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"tokens": [1]})

    async with engine(answer) as address:
        assert await ask(await closed_port(), address) == b"\1\0\0\0"


async def test_two_refused_connections_or_nobody_ready_is_down() -> None:
    for addresses in ((await closed_port(),), (None,)):
        with pytest.raises(TokenizerError):
            await ask(*addresses)


async def test_an_answer_that_breaks_off_is_down() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "100"})
        await response.prepare(request)
        await response.write(b'{"tokens":')
        assert request.transport is not None
        request.transport.abort()
        return response

    async with engine(answer) as address:
        with pytest.raises(TokenizerError):
            await ask(address)


@pytest.mark.parametrize(("extra", "fits"), [(0, True), (1, False)])
async def test_the_size_of_an_answer_is_bounded(
    monkeypatch: pytest.MonkeyPatch, extra: int, fits: bool
) -> None:
    text = b'{"tokens":[1]}'
    monkeypatch.setattr(tokenizer, "MAX_ANSWER_BYTES", len(text) + 10)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=text + b" " * (10 + extra))

    async with engine(answer) as address:
        if fits:
            assert await ask(address) == b"\1\0\0\0"
        else:
            with pytest.raises(TokenizerError, match="answered more"):
                await ask(address)


async def test_a_server_that_renders_is_asked_at_the_apis_own_path_by_url_or_address() -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.json_response({"request_id": "r", "token_ids": [7], "features": None})

    async with engine(answer) as address:
        for place in (address, f"http://{address}"):
            assert await ask(place, path=RENDER) == b"\7\0\0\0"
    assert seen == [RENDER, RENDER]


@pytest.mark.parametrize("status", [403, 404, 405, 501])
async def test_an_engine_that_does_not_render_is_told_from_one_that_fails(status: int) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    async with engine(answer) as address:
        with pytest.raises(TokenizerAbsentError):
            await ask(address, path=RENDER)
        with pytest.raises(TokenizerError):
            await ask(address)
