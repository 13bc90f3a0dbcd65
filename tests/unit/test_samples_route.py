"""Where the reference's configurations send requests: what each of them is for."""

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from epp import protocol
from epp.framework import Role
from epp.request.exchange import Route
from epp.request.plan.live import build
from epp.state.endpoints import Member
from epp.state.load import LoadReport
from tests.fakes.desk import Desk, ask, open_desk
from tests.unit.test_sample_configs import load

LONG = list(range(1000))
D, P, E = Role.DECODE, Role.PREFILL, Role.ENCODE
PODS: Sequence[tuple[int, float]] = ((3, 0.2), (0, 0.1), (10, 0.2))
"""Waiting requests and KV use: the reference's first hermetic case, where the second is best."""


@asynccontextmanager
async def running(name: str, *roles: Role, count: int = 3) -> AsyncIterator[Desk]:
    """A pool whose picker decides by a sample. The label of an endpoint's role is there, too."""
    async with open_desk(count, built=build(load(name)), roles=roles) as desk:
        relabel(desk, {})
        yield desk


def relabel(desk: Desk, labels: dict[int, dict[str, str]]) -> None:
    desk.members = [
        Member(
            id=one.id,
            address=one.address,
            role=one.role,
            labels={"llm-d.ai/role": one.role.value, **labels.get(number, {})}
            if one.role is not Role.UNLABELLED
            else labels.get(number, {}),
        )
        for number, one in enumerate(desk.members)
    ]
    desk.pool.replace(desk.members, desk.now)


def busy(desk: Desk, *loads: tuple[int, float]) -> None:
    for member, (waiting, kv) in zip(desk.members, loads, strict=True):
        life = desk.pool.endpoints.incarnation(member.id)
        assert life is not None
        report = LoadReport(waiting=waiting, running=waiting, kv_usage=kv, total_blocks=2048)
        desk.load.report(life, report, desk.now)


async def sent(desk: Desk, body: Any = None, **how: Any) -> list[int]:
    """Numbers of the pods that a request is sent to, which has not begun there."""
    route = await desk.route(ask([7]) if body is None else body, **how)
    route.progress.reset(answered=False)
    return pods(route)


def pods(route: Route) -> list[int]:
    assert route.destination is not None
    return named(route.destination)


def named(addresses: str) -> list[int]:
    return [int(each.split(":")[0].rsplit(".", 1)[1]) for each in addresses.split(",") if each]


def header(route: Route, name: str) -> list[int]:
    return named(dict(route.set_headers).get(name, ""))


async def test_the_default_goes_by_load_until_a_prefix_outweighs_it() -> None:
    async with running("default.yaml") as desk:
        busy(desk, *PODS)
        assert await sent(desk) == [1]
        busy(desk, (0, 0.0), (0, 0.0), (0, 0.0))
        (holder,) = pods(await desk.served(ask(LONG)))
        assert await sent(desk, ask([*LONG, 1])) == [holder]


async def test_load_alone_shares_by_weight_and_shuns_the_busiest() -> None:
    async with running("load.yaml") as desk:
        busy(desk, (0, 0.0), (0, 0.0), (100, 0.0))
        seen = [(await sent(desk))[0] for _ in range(300)]
    assert set(seen) == {0, 1, 2}
    assert seen.count(2) < min(seen.count(0), seen.count(1))


async def test_the_older_group_names_a_list_of_three_best_first() -> None:
    async with running("older-group.yaml") as desk:
        busy(desk, *PODS)
        assert await sent(desk) == [1, 0, 2]


async def test_passing_through_goes_by_load_and_changes_nothing() -> None:
    async with running("passthrough.yaml") as desk:
        busy(desk, *PODS)
        route = await desk.route(b"passthrough-parser")
        assert (pods(route), route.body) == ([1], None)


async def test_precise_prefixes_follow_the_engines_own_events() -> None:
    async with running("precise-prefix.yaml") as desk:
        await sent(desk, ask(LONG))
        keys = desk.witness.decisions[-1][1].keys
        life = desk.pool.endpoints.incarnation(desk.members[2].id)
        assert life is not None
        desk.index.store(life, keys)
        assert await sent(desk, ask(LONG)) == [2]


async def test_cold_prompts_take_turns() -> None:
    async with running("no-hit-lru.yaml") as desk:
        seen = [(await sent(desk, ask([number, *LONG])))[0] for number in range(3)]
    assert sorted(seen) == [0, 1, 2]


async def test_a_session_returns_to_the_pod_that_its_token_names() -> None:
    async with running("session.alpha.yaml") as desk:
        busy(desk, *PODS)
        route = await desk.route(ask([7]))
        tokens = dict(route.progress.response_headers(200, None))
        assert pods(route) == [1]
        assert base64.b64decode(tokens["x-session-token"]) == b"pod-1:8000"
        other = base64.b64encode(b"pod-2:8000").decode()
        assert await sent(desk, headers={"x-session-token": other}) == [2]


async def test_ranks_are_reached_through_the_primary_port() -> None:
    async with running("data-parallel.yaml", count=1) as desk:
        member = desk.members[0]
        desk.members = [Member(id=member.id, address="10.0.0.9:8003")]
        desk.pool.replace(desk.members, desk.now)
        route = await desk.route(ask([7]))
    assert route.destination == "10.0.0.9:8000"
    assert dict(route.set_headers)[protocol.DATA_PARALLEL] == "10.0.0.9:8003"


async def test_long_uncached_prompts_are_split_and_short_ones_are_not() -> None:
    for name, short in (("split.yaml", 15), ("split-older-names.yaml", 511)):
        async with running(name, D, P, P) as desk:
            route = await desk.route(ask(LONG))
            assert pods(route) == [0]
            assert header(route, protocol.PREFILLER)[0] in {1, 2}
            whole = await desk.route(ask(LONG[:short]))
            assert (pods(whole), header(whole, protocol.PREFILLER)) == ([0], [])


async def test_the_prefill_pod_is_near_the_decode_pod() -> None:
    async with running("topology.alpha.yaml", D, P, P) as desk:
        host = "kubernetes.io/hostname"
        relabel(desk, {0: {host: "here"}, 1: {host: "there"}, 2: {host: "here"}})
        for _ in range(5):
            route = await desk.route(ask(LONG))
            assert header(route, protocol.PREFILLER) == [2]


async def test_media_and_prompts_are_computed_apart_from_answers() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://a/1.png"}}
    words = {"type": "text", "text": "What is this?"}
    body = {"model": "m", "messages": [{"role": "user", "content": [image, words]}]}
    async with running("encode.yaml", D, P, E) as desk:
        route = await desk.route(msgspec.json.encode(body), path="/v1/chat/completions")
        assert (pods(route), header(route, protocol.ENCODERS)) == ([0], [2])
        text = await desk.route(ask(LONG))
        assert (header(text, protocol.PREFILLER), header(text, protocol.ENCODERS)) == ([1], [])
