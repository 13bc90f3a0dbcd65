"""What other replicas have reserved, added up and forgotten in time."""

import asyncio
from random import Random
from typing import Any

import pytest

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.load import LoadBook, LoadReport, LoadRules
from epp.state.measures import PREFILL_TOKENS
from epp.state.replicas import MOST, Heard, own, total
from epp.state.reservation import Sums
from epp.state.sharing import AGAIN_S, LONGEST_ROUND_S, ROUND_S, Sharing
from epp.state.sums import LEASE_S, MAX_SUMS, EndpointSum, ReplicaSums
from tests.fakes.board import Boards

POOL = PoolId("p")
A, B = EndpointId(POOL, "a", 8000), EndpointId(POOL, "b", 8000)
LIFE = Incarnation(A, 100)


def said(inc: Incarnation, requests: int, **more: Any) -> EndpointSum:
    return EndpointSum(incarnation=inc, requests=requests, **more)


def lives(*known: Incarnation) -> dict[EndpointId, Incarnation]:
    return {inc.endpoint: inc for inc in known}


def test_the_sums_of_all_others_are_added_by_life() -> None:
    one = ReplicaSums("x", (said(LIFE, 2, pending=1, prefill_tokens=700, decode_blocks=9),))
    two = ReplicaSums("y", (said(LIFE, 3, prefill_tokens=50, decode_blocks=1),))
    assert total([one, two], lives(LIFE).get) == {LIFE: Sums(5, 1, 750, 10)}


def test_a_life_that_is_over_counts_no_more_and_a_newer_or_unknown_one_does() -> None:
    over, newer = Incarnation(A, 99), Incarnation(A, 101)
    for inc, counted in ((over, False), (newer, True), (Incarnation(A, 0), True)):
        found = total([ReplicaSums("x", (said(inc, 1),))], lives(LIFE).get)
        assert (found == {LIFE: Sums(1)}) == counted
    unborn = Incarnation(A, 0)
    assert total([ReplicaSums("x", (said(LIFE, 1),))], lives(unborn).get) == {unborn: Sums(1)}


def test_nobody_becomes_a_member_by_what_others_say() -> None:
    assert total([ReplicaSums("x", (said(Incarnation(B, 5), 1),))], lives(LIFE).get) == {}


def test_no_sum_is_absurd_whatever_is_said() -> None:
    huge = ReplicaSums("x", (said(LIFE, 2**40, prefill_tokens=2**63, decode_blocks=2**63),))
    assert total([huge], lives(LIFE).get) == {LIFE: Sums(MOST, 0, MOST, MOST)}


def test_with_more_endpoints_than_fit_the_busiest_are_said() -> None:
    many = {
        Incarnation(EndpointId(POOL, f"e{number}", 1), 1): Sums(number)
        for number in range(1, MAX_SUMS + 6)
    }
    found = own("me", many, {})
    assert len(found.sums) == MAX_SUMS
    assert min(one.requests for one in found.sums) == 6


def test_an_endpoint_without_requests_is_said_where_blocks_are_foretold() -> None:
    other = Incarnation(B, 7)
    found = own("me", {LIFE: Sums(1)}, {LIFE: (1, 2), other: (3,)})
    assert found.sums == (said(LIFE, 1, keys=(1, 2)), said(other, 0, keys=(3,)))
    assert total([found], lives(LIFE, other).get) == {LIFE: Sums(1)}


def test_what_others_reserve_is_load_like_our_own() -> None:
    book = LoadBook()
    book.report(LIFE, LoadReport(waiting=0, running=1, total_blocks=100, block_tokens=16), 0.0)
    book.reserve(LIFE, "r", prefill_tokens=100, decode_tokens=160, has_writer=True, now=0.0)
    book.elsewhere({LIFE: Sums(4, 3, 1_000, 20)}, 0.0)
    load = book.load(LIFE, 0.0)
    assert (load.reserved_requests, load.reserved_pending) == (5, 4)
    assert (load.reserved_prefill_tokens, load.reserved_decode_blocks) == (1_100, 30)
    assert LIFE in book.changed(0.0)
    assert book.sums() == {LIFE: Sums(1, 1, 100, 10)}  # never said again as if it were ours
    book.elsewhere({}, 0.0)
    assert book.changed(0.0) == [LIFE]
    assert book.load(LIFE, 0.0).reserved_requests == 1
    book.elsewhere({}, 0.0)
    assert book.changed(0.0) == []


def test_the_prompts_of_others_are_worked_off_until_they_say_something_new() -> None:
    book = LoadBook(LoadRules(prefill_tokens_per_s=1000.0))
    book.elsewhere({LIFE: Sums(1, 1, 1_500, 10)}, 10.0)
    book.changed(10.0)
    for now, left in ((10.0, 1_500), (10.5, 1_000), (11.0, 500), (12.0, 0)):
        book.elsewhere({LIFE: Sums(1, 1, 1_500, 10)}, now)  # the same word again
        book.tick(now)
        assert book.changed(now) == [LIFE]
        assert book.load(LIFE, now).reserved_prefill_tokens == left
        assert book.row(LIFE, now)[0][PREFILL_TOKENS] == left
    book.elsewhere({LIFE: Sums(2, 2, 2_500, 10)}, 13.0)
    assert book.load(LIFE, 13.5).reserved_prefill_tokens == 2_000
    assert book.load(LIFE, 13.5).reserved_requests == 2


def test_the_sums_of_others_end_with_the_life_and_follow_it_when_its_start_becomes_known() -> None:
    book, unborn, nxt = LoadBook(), Incarnation(A, 0), Incarnation(A, 200)
    book.elsewhere({unborn: Sums(2)}, 0.0)
    book.adopt(unborn, LIFE)
    assert book.load(LIFE, 0.0).reserved_requests == 2
    book.elsewhere({}, 0.0)
    assert book.load(LIFE, 0.0).reserved_requests == 0
    book.elsewhere({LIFE: Sums(2)}, 0.0)
    book.forget(LIFE)
    book.elsewhere({nxt: Sums(1)}, 0.0)
    assert book.load(LIFE, 0.0).reserved_requests == 0
    assert book.load(nxt, 0.0).reserved_requests == 1


def test_what_was_heard_counts_for_one_lease() -> None:
    heard = Heard(2.0)
    assert not heard.over(1e9)
    heard.hear([ReplicaSums("x")], 10.0)
    assert not heard.over(11.9)
    assert heard.over(12.0)
    assert not heard.over(13.0)


class Replica:
    """The state of one replica, as sharing sees it."""

    def __init__(self) -> None:
        self.mine: dict[Incarnation, Sums] = {}
        self.theirs: dict[Incarnation, Sums] = {}

    def reserved(self) -> dict[Incarnation, Sums]:
        return dict(self.mine)

    def foretold(self) -> dict[Incarnation, tuple[int, ...]]:
        return {}

    def elsewhere(self, others: list[ReplicaSums] | tuple[ReplicaSums, ...], now: float) -> None:
        self.theirs = total(others, lives(LIFE).get)


def sharing(replica: Replica, boards: Boards, name: str) -> Sharing:
    clock = asyncio.get_running_loop().time
    return Sharing(
        replica, boards.of(name), name, clock=clock, rng=Random(7), call_s=0.5
    )  # fmt: skip


@pytest.mark.looptime
async def test_replicas_hear_of_each_other_in_moments_and_of_a_dead_one_for_one_lease() -> None:
    boards, one, two = Boards(), Replica(), Replica()
    first, second = sharing(one, boards, "one"), sharing(two, boards, "two")
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(first.run()), tasks.create_task(second.run())]
        await asyncio.sleep(1.0)
        two.mine[LIFE] = Sums(300, 300, 10_000, 4_000)
        await asyncio.sleep(3 * ROUND_S)
        assert one.theirs == two.mine
        assert (first.replicas, second.replicas) == (1, 1)
        running[1].cancel()  # without a word
        await asyncio.sleep(LEASE_S + LONGEST_ROUND_S)
        assert one.theirs == {}
        assert first.replicas == 0
        running[0].cancel()


@pytest.mark.looptime
async def test_a_board_that_hangs_or_fails_costs_the_sums_of_others_and_heals() -> None:
    boards, one, two = Boards(), Replica(), Replica()
    first = sharing(one, boards, "one")
    two.mine[LIFE] = Sums(1)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(first.run()),
            tasks.create_task(sharing(two, boards, "two").run()),
        ]
        await asyncio.sleep(1.0)
        assert one.theirs == {LIFE: Sums(1)}
        for broken in ("hangs", "fails"):
            boards.broken = broken
            await asyncio.sleep(LEASE_S / 2)
            assert one.theirs == {LIFE: Sums(1)}
            await asyncio.sleep(LEASE_S)
            assert one.theirs == {}
            boards.broken = ""
            await asyncio.sleep(2.5)
            assert one.theirs == {LIFE: Sums(1)}
        assert first.counts["lapsed"] == 2
        assert first.counts["failed"] > 2
        for task in running:
            task.cancel()


@pytest.mark.looptime
async def test_a_replica_with_nothing_new_says_so_no_oftener_than_the_lease_needs() -> None:
    boards, one = Boards(), Replica()
    first = sharing(one, boards, "one")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(first.run())
        await asyncio.sleep(20 * AGAIN_S)
        assert first.counts["said"] <= 21
        running.cancel()
