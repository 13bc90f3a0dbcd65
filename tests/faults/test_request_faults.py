"""Field faults of bodies, deadlines and choice, against the director over the real pool state."""

import asyncio
import time
from collections import Counter
from random import Random
from typing import Any

import pytest

from epp.errors import BadRequest, NoEndpoint
from epp.framework import Rung
from epp.request.exchange import Route
from tests.fakes.desk import Desk, ask, open_desk
from tests.timing import scaled


class Stuck:
    """A tokenizer that never answers."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def __call__(self, *_: object) -> bytes:
        await self.gate.wait()
        return b'{"tokens":[]}'


async def test_A08_a_wrong_body_gets_the_same_400_whatever_the_mode() -> None:
    """Protected by `apis.reading.read`. Red when it lets a missing model pass."""
    async with open_desk() as desk:
        for mode in desk.switch.modes:
            desk.switch.switch(mode)
            for body in (b'{"model":', b"nul", b"[1,2]", b'{"model":null}', b'{"prompt":"p"}'):
                assert isinstance(await desk.decide(body), BadRequest)


async def test_A10_prompts_of_equal_first_blocks_meet_and_others_have_other_keys() -> None:
    """Protected by `Tokens._exact`. Red when token ids are not hashed (every request keyless)."""
    head = list(range(64))
    async with open_desk() as desk:
        first = await desk.served(ask([*head, *range(9000, 9010)]))
        second = await desk.route(ask([*head, *range(7000, 7010)]))
        await desk.route(ask(list(range(1, 65))))
        keys = [request.keys for _, request, _ in desk.witness.decisions]
    assert first.destination == second.destination
    assert keys[0] == keys[1] != ()
    assert keys[2] != keys[0]


async def test_A17_a_stuck_tokenizer_holds_a_decision_no_longer_than_its_wait() -> None:
    """Protected by the timeout of `Tokens._ask`. Red without it: the call's own limit, 2 s."""
    stuck = Stuck()
    async with open_desk(tokenizer=stuck, then=stuck.gate.set) as desk:
        begin = time.monotonic()
        await desk.route(ask("word " * 100))
        assert time.monotonic() - begin < scaled(0.5)
        decision, request, _ = desk.witness.decisions[0]
    assert decision.rung is Rung.PREDICTED
    assert not request.exact
    assert decision.reasons[-1] == "tokens late"


async def test_A20_long_prompts_do_not_hold_up_the_event_loop() -> None:
    """Protected by `Offload.run`. Red when it runs everything inline: one gap of half a second."""
    gaps: list[float] = []

    async def probe() -> None:
        while True:
            begin = time.monotonic()
            await asyncio.sleep(0.005)
            gaps.append(time.monotonic() - begin - 0.005)

    async with open_desk() as desk:
        body = b'{"model":"m","prompt":[' + b",".join([b"12345"] * 200_000) + b"]}"
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(probe())
            await asyncio.gather(*(desk.route(body) for _ in range(20)))
            watch.cancel()
        whys = Counter(why for *_, why in desk.witness.decisions)
    assert sum(whys.values()) == 20
    assert max(gaps) < scaled(0.2), gaps


@pytest.mark.parametrize("model", ["a\r\nx-evil: 1", "m" * 20_000, "mödel", "m\0", "\ud83d"])
async def test_A23_what_a_client_wrote_never_enters_a_header(model: str) -> None:
    """Protected by `PickDirector._route`, which sets numbers and our own id only. Red with the
    model among its headers."""
    async with open_desk() as desk:
        body = b'{"model":"%s","prompt":"p"}' % _escaped(model)
        route = await desk.route(body)
    for name, value in route.set_headers:
        assert value.isascii()
        assert value.isalnum(), name


def _escaped(text: str) -> bytes:
    return "".join(f"\\u{ord(char):04x}" if char != "m" else char for char in text).encode()


async def test_B01_nobody_ready_and_nobody_allowed_are_503_with_a_reason() -> None:
    """Protected by `filters.eligible`. Red when an empty subset counts as none at all."""
    async with open_desk() as desk:
        assert isinstance(await desk.decide(ask(), subset=()), NoEndpoint)
        for member in desk.members:
            desk.pool.endpoints.set_ready(member.id, False, desk.now)
        for body in (ask(), ask(list(range(640)))):
            outcome = await desk.decide(body)
            assert isinstance(outcome, NoEndpoint)
            assert (outcome.status, outcome.reason) == (503, "rejected-no-endpoints")


async def test_B02_a_pool_whose_metrics_are_all_stale_goes_on_evenly() -> None:
    """Protected by `cost._known`, which fills in the same for everybody, and by our own counts. Red
    when the unknown stays unknown: no cost is a number, and the scorer loses its vote."""
    async with open_desk() as desk:
        desk.now += 100.0
        shares = Counter([(await desk.route(ask())).destination for _ in range(200)])
        assert desk.booth.failures == []
    assert len(shares) == 4
    assert max(shares.values()) <= 60


async def test_B08_one_endpoint_or_equal_ones_give_a_finite_choice() -> None:
    """Protected by `cost._Engines`, which divides by nothing that may be 0. Red when costs are set
    against their range."""
    for count in (1, 3):
        async with open_desk(count) as desk:
            await desk.route(ask())
            assert desk.witness.failures == desk.booth.failures == []
            assert all(row.total == row.total for row in desk.witness.last.table)


async def test_B16_a_malformed_subset_never_means_the_whole_pool() -> None:
    """Protected by `subset.allowed`. Red when an unreadable entry is skipped as if absent."""
    async with open_desk() as desk:
        for entry in ("", "x", ":", "10.0.0.1:", "10.0.0.1:8000:1", "[10.0.0.1"):
            assert isinstance(await desk.decide(ask(), subset=(entry,)), NoEndpoint), entry


async def test_B17_every_candidate_of_changing_subsets_is_reached_alike() -> None:
    """Protected by the draw in `max_score`. Red when it takes the first of the tied ones."""
    left = tuple(f"10.0.0.{number}:8000" for number in (0, 1, 2))
    right = tuple(f"10.0.0.{number}:8000" for number in (3, 4))
    shares: Counter[str] = Counter()
    async with open_desk(5) as desk:
        for number in range(1000):
            route = await desk.route(ask(), subset=left if number % 2 else right)
            shares[route.destination] += 1
            route.progress.finished()
    for subset in (left, right):
        mean = 500 / len(subset)
        sigma = (500 * (1 / len(subset)) * (1 - 1 / len(subset))) ** 0.5
        assert all(abs(shares[address] - mean) < 4 * sigma for address in subset), shares


async def test_B23_a_request_routed_by_load_teaches_the_index() -> None:
    """Protected by `PickDirector._route`, which charges whatever the path of the decision. Red when
    only matched requests are charged."""
    tokens = list(range(640))
    async with open_desk() as desk:
        first = await desk.route(ask(tokens))
        assert desk.witness.last.chosen[0].match.tokens == 0
        first.progress.response_headers(200, None)
        first.progress.body(1)
        first.progress.finished()
        for _ in range(5):  # more at once would be a burst, which spreads
            route = await desk.route(ask(tokens))
            assert route.destination == first.destination
            route.progress.finished()


async def test_A25_an_end_seen_twice_is_one_end() -> None:
    """Protected by `Flight._over`. Red without it, in the unit test that counts calls; here the
    load is never negative whatever the order."""
    chance = Random(1)
    async with open_desk() as desk:
        for _ in range(50):
            progress = (await desk.route(ask())).progress
            steps: list[Any] = [
                progress.finished,
                lambda p=progress: p.body(1),
                lambda p=progress: p.reset(answered=True),
                lambda p=progress: p.reset(answered=False),
                lambda p=progress: p.response_headers(200, None),
            ]
            for step in chance.sample(steps, len(steps)) * 2:
                step()
            desk.pool.tick(desk.now)
        desk.now += 10_000.0
        desk.pool.tick(desk.now)
        assert desk.reserved() == 0


async def _warm_routes(desk: Desk, number: int) -> list[Route]:
    return [await desk.route(ask(list(range(640)))) for _ in range(number)]


async def test_B11_a_hot_prefix_leaves_the_endpoint_whose_queue_grows() -> None:
    """Protected by `Cost.total`. Red when only what is not cached counts: all on one."""
    async with open_desk() as desk:
        routes = await _warm_routes(desk, 40)
    shares = Counter(route.destination for route in routes)
    assert max(shares.values()) <= 14
    assert min(shares.values()) >= 4
