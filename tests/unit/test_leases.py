"""Whose turn it is: at most one replica's, and soon another one's when that dies."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from epp.state.leases import LEASE_S, MARGIN, RENEWALS, Alone, Elector
from tests.fakes.register import Leases

NAME = "planner"
pytestmark = [pytest.mark.looptime]


def now() -> float:
    return asyncio.get_running_loop().time()


def elector(leases: Leases, holder: str, clock: Callable[[], float] = now) -> Elector:
    return Elector(leases.of(holder), NAME, clock=clock, rng=Random(holder))


@asynccontextmanager
async def standing(*electors: Elector) -> AsyncIterator[list[asyncio.Task[None]]]:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one.run()) for one in electors]
        try:
            yield running
        finally:
            for task in running:
                task.cancel()


async def killed(task: asyncio.Task[None], leases: Leases) -> None:
    """As by kill -9: nothing is given back."""
    leases.broken = "fails"
    task.cancel()
    await asyncio.wait({task})
    leases.broken = ""


async def test_of_two_that_stand_one_holds_and_keeps_it() -> None:
    leases = Leases()
    one, two = elector(leases, "one"), elector(leases, "two")
    async with standing(one, two):
        for _ in range(100):
            await asyncio.sleep(0.3)
            assert [one.held, two.held].count(True) == 1
        assert one.counts + two.counts == {"taken": 1}


async def test_the_lease_of_a_killed_holder_is_taken_over_within_it() -> None:
    leases = Leases()
    one, two = elector(leases, "one"), elector(leases, "two")
    async with standing(one) as (first,):
        await asyncio.sleep(0.1)
        async with standing(two):
            await asyncio.sleep(5)
            assert one.held
            await killed(first, leases)
            await asyncio.sleep(LEASE_S + LEASE_S / RENEWALS)
            assert two.held
            assert not one.held


async def test_a_holder_that_ends_gives_it_back_at_once() -> None:
    leases = Leases()
    one, two = elector(leases, "one"), elector(leases, "two")
    async with standing(one) as (first,):
        await asyncio.sleep(0.1)
        async with standing(two):
            await asyncio.sleep(5)
            first.cancel()
            await asyncio.sleep(LEASE_S / RENEWALS)
            assert two.held


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_who_cannot_renew_stops_before_another_may_begin(how: str) -> None:
    leases = Leases()
    one = elector(leases, "one")
    async with standing(one):
        await asyncio.sleep(10)
        leases.broken = how
        while leases.holder(NAME) is not None:
            last_held = one.held
            await asyncio.sleep(0.01)
        assert not last_held
        await asyncio.sleep(1)  # a question that hangs ends first
        assert one.counts["lost"] == 1
        assert one.counts["failed"] >= 1


async def test_while_nobody_can_be_asked_nobody_holds_and_afterwards_one_does() -> None:
    leases = Leases()
    one, two = elector(leases, "one"), elector(leases, "two")
    async with standing(one, two):
        await asyncio.sleep(1)
        leases.broken = "fails"
        await asyncio.sleep(LEASE_S)
        for _ in range(50):
            await asyncio.sleep(0.1)
            assert not one.held
            assert not two.held
        leases.broken = ""
        await asyncio.sleep(LEASE_S / RENEWALS)
        assert [one.held, two.held].count(True) == 1


@pytest.mark.parametrize("skew_s", [-86_400.0, 86_400.0])
async def test_clocks_that_disagree_by_a_day_make_no_second_holder(skew_s: float) -> None:
    leases = Leases()
    one, two = elector(leases, "one"), elector(leases, "two", lambda: now() + skew_s)
    async with standing(one) as (first,):
        await asyncio.sleep(0.1)
        async with standing(two):
            for _ in range(100):
                await asyncio.sleep(0.1)
                assert one.held
                assert not two.held
            await killed(first, leases)
            await asyncio.sleep(LEASE_S + LEASE_S / RENEWALS)
            assert two.held


async def test_an_answer_that_took_long_counts_from_when_it_was_asked() -> None:
    leases = Leases()
    one = elector(leases, "one")
    slow = leases.of("one")

    async def take(name: str, lease_s: float) -> bool:
        granted = await slow.take(name, lease_s)
        await asyncio.sleep(lease_s)
        return granted

    one._register.take = take  # type: ignore[method-assign]  # the answer is what is slow
    async with standing(one):
        for _ in range(40):
            await asyncio.sleep(0.2)
            assert not one.held


async def test_a_process_that_slept_through_its_lease_does_not_hold_it() -> None:
    leases, slept_s = Leases(), 0.0
    one = elector(leases, "one", lambda: now() + slept_s)
    async with standing(one):
        await asyncio.sleep(1)
        assert one.held
        slept_s = LEASE_S * (1 - MARGIN)
        assert not one.held


async def test_who_hosts_the_store_is_elected_by_itself() -> None:
    one = Elector(Alone(), NAME, clock=now, rng=Random(1))
    async with standing(one):
        await asyncio.sleep(0.01)
        for _ in range(100):
            assert one.held
            await asyncio.sleep(0.1)
    assert not one.held
