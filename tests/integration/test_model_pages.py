"""Pages of models over real connections: good ones, bad ones, and a plan that changes its mind."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from epp.config.serve import serve_settings
from epp.framework import EndpointId, PoolId, Request
from epp.picker import Picker
from epp.state.endpoints import Member as PoolMember
from epp.state.model_pages import MAX_PAGE_BYTES, Asked, ModelPages
from tests.fakes.waiting import until

ASKED = Asked("/v1/models", 600.0, 0)


@dataclass(frozen=True, slots=True)
class Member:
    id: EndpointId
    address: str


def member(name: str, address: str) -> Member:
    return Member(EndpointId(PoolId("p"), name, 1), address)


@asynccontextmanager
async def engine(body: bytes | None, status: int = 200) -> AsyncIterator[tuple[str, list[str]]]:
    """Its address, and the paths that it was asked for. Without a body it never answers."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        if body is None:
            await asyncio.Event().wait()
        return web.Response(body=body, status=status)

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}", seen
    finally:
        await runner.cleanup()


def page(*names: str) -> bytes:
    return json.dumps({"data": [{"id": name} for name in names]}).encode()


class Reading:
    """Pages that are being read, and what was told of them."""

    def __init__(self, *members: Member, asked: Asked | None = ASKED) -> None:
        self.asked = asked
        self.now = 100.0
        self.told: list[tuple[str, set[str]]] = []
        self.pages = ModelPages(
            members=lambda: members,
            asked=lambda: self.asked,
            told=lambda endpoint, models: self.told.append((endpoint.name, set(models))),
            clock=lambda: self.now,
            timeout_s=0.3,
            at_once=2,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.pages.run())
            yield
            task.cancel()


async def test_every_member_is_asked_and_whoever_answers_is_told() -> None:
    async with engine(page("llama")) as (one, seen), engine(page("llama", "ad")) as (two, _):
        reading = Reading(member("one", one), member("two", two), member("same", one))
        async with reading.running():
            await until(lambda: len(reading.told) == 3)
    assert dict(reading.told) == {"one": {"llama"}, "same": {"llama"}, "two": {"llama", "ad"}}
    assert seen == ["/v1/models"] * 2
    assert reading.pages.counts == {"pages": 3}


async def test_a_page_that_cannot_be_read_is_counted_and_holds_up_nobody() -> None:
    large = b" " * (MAX_PAGE_BYTES + 1)
    async with (
        engine(b"<html>") as (broken, _),
        engine(b"", 503) as (refusing, _),
        engine(None) as (silent, _),
        engine(large) as (talkative, _),
        engine(page("llama")) as (good, _),
    ):
        reading = Reading(
            *(member(at, at) for at in (broken, refusing, silent, talkative)),
            member("gone", "127.0.0.1:1"),
            member("good", good),
        )
        async with reading.running():
            await until(lambda: reading.pages.counts.total() == 6)
    assert reading.told == [("good", {"llama"})]
    wanted = ("broken", "status", "timeout", "too-large", "unreachable", "pages")
    assert reading.pages.counts == dict.fromkeys(wanted, 1)


async def test_a_page_as_large_as_it_may_be_is_read() -> None:
    text = page("llama")
    async with engine(text + b" " * (MAX_PAGE_BYTES - len(text))) as (at, _):
        reading = Reading(member("one", at))
        async with reading.running():
            await until(lambda: reading.told)
    assert reading.told == [("one", {"llama"})]


async def test_pages_are_read_again_when_they_are_due_and_at_once_for_another_plan() -> None:
    async with engine(page("llama")) as (at, seen):
        reading = Reading(member("one", at), asked=None)
        async with reading.running():
            await asyncio.sleep(0.6)
            assert seen == []
            reading.asked = ASKED
            await until(lambda: len(reading.told) == 1)
            reading.asked = Asked("/models", 600.0, 1)
            await until(lambda: len(reading.told) == 2)
            reading.now += 600.0
            await until(lambda: len(reading.told) == 3)
    assert seen == ["/v1/models", "/models", "/models"]


async def test_a_picker_tells_its_filter_what_members_serve() -> None:
    text = (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: queue-scorer}, {type: served-model-filter}]"
    )
    made = Picker(serve_settings({"config_text": text, "endpoints_file": "unread"}))
    async with engine(page("llama")) as (one, _), engine(page("qwen")) as (two, _):
        made.pool.replace([PoolMember(id=member(at, at).id, address=at) for at in (one, two)], 0.0)
        ((plugin, *_),) = (profile.filters for profile in made.live.built.profiles.values())
        asked = Request(id="r", api="chat", path="/", target_model="qwen")

        def kept() -> list[str]:
            pool = made.pool.ready(0.0)
            mask = plugin.plugin.keep(asked, pool)
            return [at for at, stays in zip(pool.addresses, mask, strict=True) if stays]

        assert sorted(kept()) == sorted([one, two])
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(made.model_pages.run())
            await until(lambda: kept() == [two])
            reading.cancel()
        made.pool.replace([], 0.0)
        made.model_pages._told(member(one, one).id, frozenset({"qwen"}))
        assert plugin.plugin._models == {}, "who has left is not remembered"
