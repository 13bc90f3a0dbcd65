"""The admin and metrics ports over real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from epp.observe import admin
from tests.fakes.desk import Desk, ask
from tests.fakes.watched import watched


@asynccontextmanager
async def pages() -> AsyncIterator[tuple[Desk, str, str, aiohttp.ClientSession]]:
    """A watched desk, the base URLs of its admin and metrics ports, and a client."""
    async with watched() as (desk, metrics, explain):
        apps = (
            admin.admin_app(explain=explain, pool=desk.pool, switch=desk.switch, clock=desk.clock),
            admin.metrics_app(metrics, clock=desk.clock),
        )
        async with (
            admin.serve(apps[0], "127.0.0.1", 0) as first,
            admin.serve(apps[1], "127.0.0.1", 0) as second,
            aiohttp.ClientSession() as session,
        ):
            yield desk, f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}", session


async def get(session: aiohttp.ClientSession, url: str) -> tuple[int, Any]:
    async with session.get(url) as answer:
        body = await answer.read()
        json = answer.content_type == "application/json"
        return answer.status, await answer.json() if json else body.decode()


async def test_the_admin_port_shows_decisions_and_endpoints() -> None:
    async with pages() as (desk, base, _, session):
        for _ in range(3):
            await desk.route(ask())
        status, body = await get(session, f"{base}/debug/decisions?limit=2")
        assert (status, len(body["decisions"])) == (200, 2)
        name = body["decisions"][1]["request_id"]
        _, one = await get(session, f"{base}/debug/decisions?request_id={name}")
        assert [entry["request_id"] for entry in one["decisions"]] == [name]
        _, none = await get(session, f"{base}/debug/decisions?request_id=unknown")
        assert none == {"decisions": []}
        _, members = await get(session, f"{base}/debug/endpoints")
        assert [one["address"] for one in members["endpoints"]] == [
            "10.0.0.0:8000",
            "10.0.0.1:8000",
        ]
        assert members["endpoints"][0]["load"]["waiting"] == 0
        assert await get(session, f"{base}/healthz") == (200, "ok\n")


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1001", "9" * 40, ""])
async def test_a_limit_out_of_range_is_answered_with_the_range(limit: str) -> None:
    async with pages() as (_, base, _, session):
        status, text = await get(session, f"{base}/debug/decisions?limit={limit}")
    assert (status, text) == (400, "limit is a number from 1 to 1000\n")


async def test_the_mode_is_switched_by_json_only() -> None:
    async with pages() as (desk, base, _, session):
        url = f"{base}/debug/mode"
        assert (await get(session, url))[1]["mode"] == "normal"
        async with session.post(url, json={"mode": "random"}) as answer:
            assert (answer.status, (await answer.json())["mode"]) == (200, "random")
        for body in ({"mode": "fast"}, {"mode": 5}, [], {}):
            async with session.post(url, json=body) as answer:
                assert answer.status == 400
                assert "normal, load-only, random" in await answer.text()
        async with session.post(url, data='{"mode": "normal"}') as answer:
            assert answer.status == 415
        async with session.post(url, json={"mode": "x" * 10_000}) as answer:
            assert answer.status == 413
        assert desk.switch.mode == "random"


async def test_the_metrics_port_serves_the_text_format() -> None:
    async with pages() as (desk, _, base, session):
        await desk.route(ask())
        async with session.get(f"{base}/metrics") as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            text = await answer.text()
        assert "epp_decisions_total{" in text
        assert await get(session, f"{base}/healthz") == (200, "ok\n")
