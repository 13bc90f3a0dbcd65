"""Faults of engines without sidecars, for which one elected replica writes. By their number."""

import asyncio
from random import Random

import pytest

from epp.state.event_ports import EventPorts, source_of
from epp.state.leases import LEASE_S, Elector
from epp.state.writing.life import Life
from tests.fakes.engines import running_engine
from tests.fakes.plain_pool import (
    OTHER,
    PROMPT,
    REPLAY,
    ask,
    member_of,
    replicas,
    whole,
)
from tests.fakes.redis_server import running
from tests.fakes.register import Leases
from tests.fakes.waiting import until

BETWEEN = "A third one that came in time, so that it is among the last ones that were heard. " * 20


async def test_C05_a_gap_that_nobody_mends_leaves_a_plain_engine_predicted() -> None:
    """Red when what is missing is not said with the record."""
    with running() as redis:
        async with (
            running_engine() as engine,  # without replays
            replicas(redis.url, [member_of(engine)], "one") as (one,),
        ):
            await until(lambda: one.plain.held["written"] == 1, within_s=10)
            await asyncio.sleep(0.3)  # a subscription needs a moment
            await ask(engine, PROMPT)
            await one.knows(engine, PROMPT)
            assert engine._publisher is not None
            engine._publisher.sequence += 1
            await ask(engine, OTHER)
            await until(lambda: one.plain.happened["gaps"] == 1, within_s=10)
            await until(lambda: one.matched(engine, PROMPT) == -1, within_s=10)
            await asyncio.sleep(0.3)
            assert one.matched(engine, OTHER) == -1


async def test_C07_a_replica_that_takes_over_knows_what_the_engine_no_longer_says() -> None:
    """Red when it does not go on from the memory of the one before."""
    with running() as redis:
        async with (
            running_engine(**REPLAY) as engine,
            replicas(redis.url, [member_of(engine)], "one", "two") as made,
        ):
            for prompt in (PROMPT, BETWEEN):
                await ask(engine, prompt)
                for one in made:
                    await one.knows(engine, prompt)
            (first,) = (one for one in made if one.elector.held)
            (second,) = (one for one in made if one is not first)
            saved = first.plain.happened["snapshots"]
            await until(lambda: first.plain.happened["snapshots"] > saved, within_s=10)
            first.kill()
            await ask(engine, OTHER)
            assert engine._publisher is not None
            kept = engine._publisher._kept
            while len(kept) > 2:  # its last message that was taken, and the one since
                kept.popleft()
            await until(lambda: second.elector.held, within_s=10)
            await second.knows(engine, OTHER)
            assert second.matched(engine, PROMPT) == whole(PROMPT)


def test_C04_a_life_whose_start_nobody_tells_is_another_one_to_the_next_writer() -> None:
    """Red when the next writer's clock, which is behind, makes it an earlier life: all that it says
    would be refused."""
    before = Life()
    before.seen(None, 5_000)
    after = Life(before.start_ms)
    assert after.seen(None, 1_000)
    assert after.start_ms > before.start_ms
    told = Life(5_000)
    assert told.seen(5_000, 9_000)
    assert told.start_ms == 5_000, "the very same life goes on"


def test_C20_each_rank_of_a_plain_pod_is_followed_at_its_own_port() -> None:
    """Red when ranks do not count ports up: one would be credited another's blocks."""
    pool = EventPorts(events=5557, replay=5600)
    found = [source_of(f"10.0.0.1:{8000 + rank}", EventPorts(step=rank), pool) for rank in range(3)]
    assert [one and (one.events, one.replay) for one in found] == [
        (f"tcp://10.0.0.1:{5557 + rank}", f"tcp://10.0.0.1:{5600 + rank}") for rank in range(3)
    ]


async def test_C26_of_two_replicas_that_both_believe_to_be_elected_one_speaks() -> None:
    """Red when an append does not compare the writer with its lease."""
    with running() as redis:
        seldom = {"convinced": True, "snapshot_s": 600.0}
        async with (
            running_engine(**REPLAY) as engine,
            replicas(redis.url, [member_of(engine)], "one", **seldom) as (one,),
        ):
            await until(lambda: one.plain.happened["records"] > 0, within_s=10)
            async with replicas(redis.url, [member_of(engine)], "two", **seldom) as (two,):
                await until(lambda: two.plain.happened["records"] > 0, within_s=10)
                await until(lambda: one.plain.happened["fenced"] == 1)
                await ask(engine, PROMPT)
                for each in (one, two):
                    await each.knows(engine, PROMPT)
                assert (one.plain.held["written"], two.plain.held["written"]) == (0, 1)


@pytest.mark.looptime
async def test_E01_while_nobody_can_be_asked_nobody_is_elected() -> None:
    """Red when a holder goes by what it was last told, and not by its clock."""
    loop = asyncio.get_running_loop()
    leases = Leases(slow_s=100.0)
    one = Elector(leases.of("one"), "planner", clock=loop.time, rng=Random(1))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(one.run())
        await asyncio.sleep(1)
        assert one.held
        leases.broken = "hangs"
        await asyncio.sleep(LEASE_S)
        assert not one.held
        task.cancel()
