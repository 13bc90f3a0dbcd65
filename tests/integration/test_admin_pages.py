"""The admin and metrics ports over real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from epp import protocol
from epp.observe import admin
from tests.fakes.desk import Desk, ask
from tests.fakes.watched import admin_pages, process_of, watched

TOKEN = "s3cret-s3cret-s3cret"
PROBE = "/v1/routing/probe"


@asynccontextmanager
async def pages(
    token: str | None = None,
) -> AsyncIterator[tuple[Desk, str, str, aiohttp.ClientSession]]:
    """A watched desk, the base URLs of its admin and metrics ports, and a client."""
    async with watched() as (desk, metrics, explain):
        app = admin.metrics_app(process_of(desk), {"pool": metrics}, clock=desk.clock)
        async with (
            admin_pages(desk, explain, token=token) as base,
            admin.serve(app, "127.0.0.1", 0) as port,
            aiohttp.ClientSession() as session,
        ):
            yield desk, base, f"http://127.0.0.1:{port}", session


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
        assert none == {
            "decisions": [],
            "replica": "epp-0",
            "kept": 3,
            "since": 1_700_000_000.0,
            "now": 1_700_000_000.0,
        }
        _, members = await get(session, f"{base}/debug/endpoints")
        assert [one["address"] for one in members["endpoints"]] == [
            "10.0.0.0:8000",
            "10.0.0.1:8000",
        ]
        assert members["endpoints"][0]["load"]["waiting"] == 0
        assert await get(session, f"{base}/healthz") == (200, "ok\n")


async def test_a_page_that_is_not_there_is_answered_with_those_that_are() -> None:
    async with pages() as (_, admin_base, metrics_base, session):
        for base, page in ((admin_base, "/debug/decisions"), (metrics_base, "/metrics")):
            status, listed = await get(session, f"{base}/")
            assert (status, listed.splitlines()[0][0]) == (200, "/")
            assert page in listed.splitlines()
            status, told = await get(session, f"{base}/debug/decision")
            assert status == 404
            assert told == f"there is no such page; there are\n{listed}"
        async with session.post(f"{admin_base}/debug/state", json={}) as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "GET,HEAD")
            assert await answer.text() == "this page is for GET, HEAD only\n"


async def test_a_list_of_pages_asks_for_the_token_as_the_pages_do() -> None:
    async with pages(TOKEN) as (_, base, _, session):
        status, told = await get(session, f"{base}/")
        assert status == 401
        assert "/debug" not in told


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
                assert "normal, load-only, random, shadow" in await answer.text()
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


async def test_a_decision_is_found_by_the_clients_id_too() -> None:
    async with pages() as (desk, base, _, session):
        for name in ("a", "b", "a", "x" * 999):
            await desk.route(ask(), headers={protocol.REQUEST_ID: name})
        for name, count in (("a", 2), ("b", 1), ("c", 0), ("x" * 999, 1)):
            _, page = await get(session, f"{base}/debug/decisions?request_id={name}")
            assert len(page["decisions"]) == count, name
            assert {one["x_request_id"] for one in page["decisions"]} <= {name[:200]}


async def test_a_probe_says_what_would_happen_and_books_nothing() -> None:
    async with pages() as (desk, base, metrics, session):
        before = await get(session, f"{metrics}/metrics")
        url = f"{base}{PROBE}?path=/v1/completions"
        async with session.post(url, json=ask(), headers={"x-request-id": "mine"}) as answer:
            assert answer.status == 200
            page = await answer.json()
        assert page["would"] == "route"
        decision = page["decision"]
        assert decision["x_request_id"] == "mine"
        assert decision["chosen"][0]["address"].startswith("10.0.0.")
        assert len(decision["table"]) == 2
        assert set(decision["table"][0]["weighted"]) == set(decision["weights"])
        assert desk.reserved() == 0
        _, kept = await get(session, f"{base}/debug/decisions")
        after = await get(session, f"{metrics}/metrics")
    assert kept["decisions"] == []
    counted = ("llm_d_epp_request_total", "epp_decisions_total", "scheduler_e2e_duration")
    for name in counted:
        assert _lines(before, name) == _lines(after, name), name


def _lines(page: tuple[int, Any], name: str) -> list[str]:
    return [line for line in page[1].splitlines() if name in line and "_created" not in line]


async def test_a_probe_says_which_refusal_there_would_be() -> None:
    async with pages() as (_, base, _, session):
        url = f"{base}{PROBE}?path=/v1/completions"
        async with session.post(url, data=b"{", headers={"content-type": "application/json"}) as a:
            broken = await a.json()
        async with session.post(f"{url}&subset=10.9.9.9,", json=ask()) as answer:
            nobody = await answer.json()
        async with session.post(f"{url}&subset=10.0.0.1:8000", json=ask()) as answer:
            one = await answer.json()
    assert broken["would"] == "refuse"
    assert (broken["refusal"]["status"], broken["refusal"]["reason"]) == (400, "bad-request")
    assert nobody["refusal"]["status"] == 503
    assert one["decision"]["chosen"][0]["address"] == "10.0.0.1:8000"
    assert one["decision"]["left_out"] == {"subset": 1}


async def test_a_call_that_is_no_probe_is_told_what_is_missing() -> None:
    async with pages() as (_, base, _, session):
        async with session.post(f"{base}{PROBE}", json=ask()) as answer:
            assert (answer.status, "?path=" in await answer.text()) == (400, True)
        path = {"x-epp-path": "/v1/completions"}
        async with session.post(f"{base}{PROBE}", json=ask(), headers=path) as answer:
            assert answer.status == 200
        async with session.post(f"{base}{PROBE}?path=/v1/x", data="{}") as answer:
            assert answer.status == 415
        async with session.post(f"{base}{PROBE}", json=ask("x" * 10_000), headers=path) as answer:
            assert answer.status == 413


async def test_what_speaks_of_the_call_is_not_the_requests() -> None:
    async with pages() as (desk, base, _, session):
        seen: dict[str, str] = {}
        whole = desk.director.preview

        async def spied(arrival: Any) -> Any:
            seen.update(arrival.headers)
            return await whole(arrival)

        desk.director.preview = spied  # type: ignore[method-assign]
        headers = [
            ("authorization", "Bearer x"),
            (protocol.ADMIN_TOKEN, "x"),
            (protocol.DESTINATION, "10.0.0.9:1"),
            ("X-Session-Token", "a"),
            ("X-Session-Token", "b"),
        ]
        async with session.post(
            f"{base}{PROBE}?path=/v1/completions", json=ask(), headers=headers
        ) as answer:
            assert answer.status == 200
    assert seen["x-session-token"] == "a,b"
    assert not {"authorization", protocol.ADMIN_TOKEN, protocol.DESTINATION, "host"} & seen.keys()


@pytest.mark.parametrize(
    "path",
    [
        "/debug/decisions",
        "/debug/endpoints",
        "/debug/state",
        "/debug/mode",
        PROBE,
        "/healthz",
        "/nowhere",
    ],
)
async def test_a_port_with_a_token_asks_for_it_on_every_page(path: str) -> None:
    async with pages(TOKEN) as (_, base, _, session):
        for given in (None, "", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xe9"):
            headers = {} if given is None else {"authorization": given}
            async with session.get(f"{base}{path}", headers=headers) as answer:
                assert answer.status == 401, given
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert TOKEN not in await answer.text()
        shown = {"authorization": f"bearer {TOKEN}"}
        async with session.get(f"{base}{path}", headers=shown) as answer:
            assert answer.status == {PROBE: 405, "/nowhere": 404}.get(path, 200)
