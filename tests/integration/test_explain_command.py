"""`epp explain` against an admin port."""

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from epp import cli, protocol
from epp.framework import Role
from epp.observe import admin
from tests.fakes.desk import ask
from tests.fakes.watched import admin_pages, watched

TOKEN = "s3cret-s3cret-s3cret"
LONG = list(range(2000))
ROLES = [Role.DECODE, Role.DECODE, Role.PREFILL]


class Said:
    """What the command printed, and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    async def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["epp", "explain", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            await asyncio.to_thread(cli.main)
        told = capsys.readouterr()
        return Said(int(end.value.code or 0), told.out, told.err)

    return run


async def test_a_decision_is_told_to_people(said: Any) -> None:
    async with watched(roles=ROLES) as (desk, _, explain), admin_pages(desk, explain) as url:
        await desk.route(
            ask(LONG, model="m\x1b[31m"),
            headers={protocol.REQUEST_ID: "mine"},
            subset=("10.0.0.0", "10.0.0.2"),
        )
        told = await said("mine", "--admin", url)
    assert told.code == 0
    for line in (
        "x-request-id  mine",
        "2023-11-14 22:13:20Z, 0 s ago",
        "model m?[31m",
        "2000 tokens (counted by an engine)",
        "10.0.0.0:8000 (pool|pod-0|8000)",
        "predicted: what was sent where before",
        "configuration default, handler disagg-profile-handler, profile decode",
        "left out: 1 by subset: 10.0.0.1:8000",
        "left out: 1 by role: 10.0.0.2:8000",
        "prefill       split; decider ",
        "computed at   10.0.0.2:8000 (pool|pod-2|8000); profile prefill",
    ):
        assert line in told.out, line
    rows = [line.split() for line in told.out.splitlines() if line.startswith("->")]
    assert [row[1] for row in rows] == ["10.0.0.0:8000", "10.0.0.2:8000"]
    assert "\x1b" not in told.out


async def test_a_decision_is_told_to_machines(said: Any) -> None:
    async with watched() as (desk, _, explain), admin_pages(desk, explain) as url:
        route = await desk.route(ask())
        name = dict(route.set_headers)[protocol.DECISION_ID]
        told = await said(name, "--json", "--admin", url.removeprefix("http://"))
    page = json.loads(told.out)
    assert [one["request_id"] for one in page["decisions"]] == [name]
    assert page["replica"] == "epp-0"


async def test_all_decisions_of_a_clients_id_are_told(said: Any) -> None:
    async with watched() as (desk, _, explain), admin_pages(desk, explain) as url:
        for _ in range(2):
            await desk.route(ask(), headers={protocol.REQUEST_ID: "again"})
        told = await said("again", "--admin", f"{url}/")
    assert told.out.startswith("2 decisions have this id, the newest first.\n")
    assert told.out.count("goes to") == 2


async def test_the_id_of_an_answer_is_understood(said: Any) -> None:
    async with watched() as (desk, _, explain), admin_pages(desk, explain) as url:
        await desk.route(ask(), headers={protocol.REQUEST_ID: "mine"})
        await desk.route(ask(), headers={protocol.REQUEST_ID: "msg_own"})
        for name, told_as in (
            ("chatcmpl-mine", "mine"),
            ("cmpl-mine", "mine"),
            ("resp_mine", "mine"),
            ("msg_own", "msg_own"),
        ):
            told = await said(name, "--admin", url)
            assert f"x-request-id  {told_as}\n" in told.out, name


async def test_who_is_not_known_is_told_what_to_do(said: Any) -> None:
    other, own = f"epp-7-{'a' * 32}", f"epp-0-{'a' * 32}"
    async with watched() as (desk, _, explain), admin_pages(desk, explain) as url:
        nothing = await said("mine", "--admin", url)
        await desk.route(ask())
        elsewhere = await said(other, "--admin", url)
        old = await said(own, "--admin", url)
        unknown = await said("mine", "--admin", url, "--json")
    assert "replica epp-0 has decided nothing yet" in nothing.err
    assert "replica epp-0 did not decide that: the id names epp-7; ask its" in elsewhere.err
    assert "not among the last 1 decisions of replica epp-0, since 2023-11-14" in old.err
    assert "another replica" not in old.err
    assert [one.code for one in (nothing, elsewhere, old, unknown)] == [2, 2, 2, 2]
    page = json.loads(unknown.out)
    assert page["decisions"] == []
    assert "another replica decided it: ask each with --admin" in page["why"]


async def test_a_port_off_loopback_wants_the_token(said: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    async with watched() as (desk, _, explain), admin_pages(desk, explain, token=TOKEN) as url:
        await desk.route(ask(), headers={protocol.REQUEST_ID: "mine"})
        without = await said("mine", "--admin", url)
        told = await said("mine", "--admin", url, "--admin-token-file", file)
    assert (without.code, told.code) == (2, 0)
    assert "--admin-token-file" in without.err


@pytest.mark.parametrize(
    ("url", "words"), [("http://[", "is no URL"), ("ftp://127.0.0.1", "is no"), ("", "is no URL")]
)
async def test_a_url_that_is_none_is_named(said: Any, url: str, words: str) -> None:
    told = await said("mine", "--admin", url)
    assert (told.code, words in told.err) == (2, True), told.err


async def test_nobody_there_is_said_so(said: Any) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        told = await said("mine", "--admin", f"http://127.0.0.1:{held.getsockname()[1]}")
    assert told.code == 2
    assert "does not answer" in told.err
    assert "--admin-port" in told.err


@pytest.mark.parametrize("body", ["{}", "[]", "no json", None])
async def test_another_port_is_not_taken_for_it(said: Any, body: str | None) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    app = web.Application()
    if body is not None:
        app.router.add_get("/debug/decisions", page)
    async with admin.serve(app, "127.0.0.1", 0) as port:
        told = await said("mine", "--admin", f"http://127.0.0.1:{port}")
    assert told.code == 2
    assert "is not a picker's admin port" in told.err
