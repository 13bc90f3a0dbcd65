"""Engines without sidecars: one elected replica writes for them, and all replicas know."""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace

import aiohttp
import pytest

from epp.framework import EndpointId
from epp.state.events import Frame
from epp.state.writing import plain_pool as module
from epp.state.writing.plain import Means
from epp.state.writing.plain_pool import PlainWriters
from tests.fakes.engines import running_engine
from tests.fakes.plain_pool import (
    LEASE_S,
    OTHER,
    PROMPT,
    REPLAY,
    Replica,
    ask,
    member_of,
    replicas,
    whole,
)
from tests.fakes.redis_server import RedisServer, running
from tests.fakes.waiting import until


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with running() as started:
        yield started


def elected(made: list[Replica]) -> Replica:
    (one,) = (one for one in made if one.elector.held)
    return one


async def test_what_a_plain_engine_holds_is_known_exactly_to_every_replica(
    redis: RedisServer,
) -> None:
    async with running_engine(**REPLAY) as engine:
        await ask(engine, PROMPT)  # before anybody listens: a replay tells of it
        async with replicas(redis.url, [member_of(engine)], "one", "two") as made:
            for one in made:
                await one.knows(engine, PROMPT)
            await ask(engine, OTHER)
            for one in made:
                await one.knows(engine, OTHER)
            async with (
                aiohttp.ClientSession(engine.url) as http,
                http.post("/admin/evict", json={"all": True}),
            ):
                pass
            for one in made:
                await one.knows(engine, PROMPT, 0)
            assert [one.plain.held["written"] for one in made].count(1) == 1
            assert sum(one.plain.happened.get("claims", 0) for one in made) == 1


async def test_another_replica_goes_on_where_a_killed_one_was(redis: RedisServer) -> None:
    async with (
        running_engine(**REPLAY) as engine,
        replicas(redis.url, [member_of(engine)], "one", "two") as made,
    ):
        await ask(engine, PROMPT)
        for one in made:
            await one.knows(engine, PROMPT)
        first = elected(made)
        (second,) = (one for one in made if one is not first)
        first.kill()
        await ask(engine, OTHER)  # while nobody writes
        await until(lambda: second.elector.held, within_s=2 * LEASE_S)
        await second.knows(engine, OTHER)
        assert second.matched(engine, PROMPT) == whole(PROMPT)
        assert second.plain.happened["gaps"] == 0


async def test_an_engine_that_begins_anew_is_credited_nothing_of_its_life_before(
    redis: RedisServer,
) -> None:
    async with (
        running_engine(**REPLAY) as engine,
        replicas(redis.url, [member_of(engine)], "one") as (one,),
    ):
        await ask(engine, PROMPT)
        await one.knows(engine, PROMPT)
        async with (
            aiohttp.ClientSession(engine.url) as http,
            http.post("/admin/restart", json={}) as answer,
        ):
            assert answer.status == 200
        await until(lambda: one.matched(engine, PROMPT) <= 0, within_s=10)
        await ask(engine, OTHER)
        await one.knows(engine, OTHER)
        assert one.matched(engine, PROMPT) == 0


async def test_who_lost_the_lease_writes_no_more(redis: RedisServer) -> None:
    async with (
        running_engine(**REPLAY) as engine,
        replicas(redis.url, [member_of(engine)], "one") as (one,),
    ):
        await until(lambda: one.plain.held["written"] == 1, within_s=10)
        redis.freeze()
        await until(lambda: not one.elector.held, within_s=2 * LEASE_S)
        await until(lambda: one.plain.held["written"] + one.plain.held["waiting"] == 0)
        claims = one.plain.happened["claims"]
        await asyncio.sleep(0.3)
        assert one.plain.happened["claims"] == claims
        redis.thaw()
        await until(lambda: one.plain.held["written"] == 1, within_s=10)


async def test_no_more_engines_are_followed_than_may_be(redis: RedisServer) -> None:
    async with running_engine(name="a", **REPLAY) as a, running_engine(name="b", **REPLAY) as b:
        members = [member_of(a), member_of(b)]
        async with replicas(redis.url, members, "one", most=1) as (one,):
            await until(lambda: one.plain.held["written"] == 1, within_s=10)
            assert one.plain.held == {"written": 1, "waiting": 0, "left-out": 1}
            one.pool.replace(members[1:], 0.0)
            await until(
                lambda: one.plain.held == {"written": 1, "waiting": 0, "left-out": 0}, within_s=10
            )
            await ask(b, PROMPT)
            await one.knows(b, PROMPT)


async def test_a_replica_that_was_just_elected_asks_for_so_many_replays_at_once_and_no_more(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way = most = done = 0

    async def slow(endpoint: str, start: int) -> AsyncGenerator[Frame, None]:
        nonlocal under_way, most, done
        under_way += 1
        most = max(most, under_way)
        while most < module.REPLAYS_AT_ONCE:  # noqa: ASYNC110 - until as many as may are there
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        under_way -= 1
        done += 1
        for frame in ():
            yield frame

    monkeypatch.setattr(module, "fetch", slow)
    monkeypatch.setattr(module, "REPLAYS_AT_ONCE", 3)
    count = 9
    async with running_engine(**REPLAY) as engine:
        one = member_of(engine)
        names = [f"e{number}" for number in range(count)]
        members = [replace(one, id=EndpointId(one.id.pool, name, one.id.port)) for name in names]
        async with replicas(redis.url, members, "one"):
            await until(lambda: done == count, within_s=20)
    assert most == module.REPLAYS_AT_ONCE


async def test_so_many_writers_are_started_at_once_and_no_more(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.5)
    monkeypatch.setattr(module, "STARTS_AT_ONCE", 2)
    seen: set[int] = set()
    async with running_engine(**REPLAY) as engine:
        one = member_of(engine)
        members = [
            replace(one, id=EndpointId(one.id.pool, f"e{number}", one.id.port))
            for number in range(5)
        ]
        async with replicas(redis.url, members, "one") as (made,):

            def started() -> int:
                held = made.plain.held
                seen.add(held["written"] + held["waiting"])
                return held["written"]

            await until(lambda: started() == len(members), within_s=20)
    assert seen == {0, 2, 4, 5}


async def test_what_fails_as_a_whole_begins_anew_and_is_counted(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 0.01)
    real, failures = PlainWriters._keep, iter([True, False, True])

    def keep(self: PlainWriters, tasks: asyncio.TaskGroup, means: Means) -> None:
        real(self, tasks, means)
        if self.held["written"] and next(failures, False):
            raise OSError("no file is left")

    monkeypatch.setattr(PlainWriters, "_keep", keep)
    async with (
        running_engine(**REPLAY) as engine,
        replicas(redis.url, [member_of(engine)], "one") as (one,),
    ):
        await until(lambda: one.plain.happened["failed"] == 2, within_s=10)
        await ask(engine, PROMPT)
        await one.knows(engine, PROMPT)
        assert one.plain.held == {"written": 1, "waiting": 0, "left-out": 0}


async def test_nothing_is_left_of_engines_that_came_and_went(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    async with running_engine(**REPLAY) as engine:
        first = member_of(engine)
        async with replicas(redis.url, [first], "one") as (one,):
            await until(lambda: one.plain.held["written"] == 1, within_s=10)
            await asyncio.sleep(0.5)
            before = files(), len(asyncio.all_tasks())
            for number in range(25):
                id_ = EndpointId(first.id.pool, f"life-{number}", first.id.port)
                one.pool.replace([replace(first, id=id_)], 0.0)
                claims = one.plain.happened["claims"]
                await until(lambda claims=claims: one.plain.happened["claims"] > claims)
            one.pool.replace([first], 0.0)
            await until(lambda: one.plain.held == {"written": 1, "waiting": 0, "left-out": 0})
            await until(
                lambda: files() <= before[0] + 8 and len(asyncio.all_tasks()) <= before[1] + 2
            )
            await ask(engine, PROMPT)
            await one.knows(engine, PROMPT)
            assert one.plain.held == {"written": 1, "waiting": 0, "left-out": 0}


def files() -> int:
    """Descriptors that this process holds."""
    return len(os.listdir("/proc/self/fd"))


async def test_engines_behind_sidecars_need_nobody_elected(redis: RedisServer) -> None:
    async with (
        running_engine(**REPLAY) as engine,
        replicas(redis.url, [member_of(engine, sidecar=True)], "one") as (one,),
    ):
        await asyncio.sleep(0.3)
        assert one.elector.counts["taken"] == 0
        assert redis.command("DBSIZE") == ":0\r\n"
        assert set(one.plain.happened.values()) == {0}, "every word is there from the start"
