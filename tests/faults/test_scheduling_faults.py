"""Faults B of choice: load, cache and chance, on simulated engines and on the director."""

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from epp.framework import Candidates, Load, Match, Request, Source
from epp.framework.registry import build_scorer
from epp.plugins.deciders.cost_pd import CostPd
from epp.sim.settings import CoreSettings
from epp.state.endpoints import Member
from tests.fakes import workloads
from tests.fakes.desk import Desk, ask, open_desk
from tests.fakes.virtual_fleet import GPU, POOL, Ask, Fleet
from tests.unit.test_cost import ASKED, IDLE, costs, pod

COST = (("cost-scorer", 1, {}),)


def fleet(*, seed: int, **how: float) -> Fleet:
    return Fleet([CoreSettings(**GPU)] * 4, COST, seed=seed, **how)  # type: ignore[arg-type]


def test_B02_engines_that_nobody_hears_of_share_evenly() -> None:
    """Protected by `reserved_pending` in `cost._Engines.busy`; red when only reports count there
    and the tokens ahead are not ours. Sizes have a long tail, so that it is work that is shared
    evenly: who has a long prompt to compute gets fewer requests."""
    run = fleet(seed=1, blind=True)
    run.run(workloads.strangers(Random(1), 30, 200))
    tokens = Counter[int]()
    for one in run.served:
        tokens[one.engine] += len(one.ask.tokens)
    shares = [tokens[engine] / tokens.total() for engine in range(4)]
    assert 0.15 <= min(shares) <= max(shares) <= 0.4, shares


@pytest.mark.parametrize("holder", [False, True], ids=["nobody-holds-it", "one-holds-it"])
def test_B06_a_burst_of_equal_prompts_does_not_follow_the_first_of_them(holder: bool) -> None:
    """Protected by `herd` in `cost.Cost.total`; red without it: whoever holds the prompt first
    takes most of them, for answers of one token cost it nothing."""
    for seed in range(3):
        run = fleet(seed=seed)
        prompt = workloads.ids(Random(seed), 4000)
        if holder:
            run.run([Ask(0.0, prompt, 1)])
        before = run.shares()
        run.run([Ask(9.0 + 0.002 * number, prompt, 1) for number in range(40)])
        given = [after - old for after, old in zip(run.shares(), before, strict=True)]
        assert max(given) <= 14, given


@pytest.mark.parametrize("report_s", [1.0, 5.0])
def test_B06_a_burst_between_two_reports_spreads(report_s: float) -> None:
    """Protected by `reserved_prefill_tokens` in `epp.framework.cost`, which is charged with each
    decision, so that work spreads and not only requests. Red without it."""
    for seed in range(3):
        chance, run = Random(seed), fleet(seed=seed, report_s=report_s)
        sizes = [chance.choice((200, 200, 200, 6000)) for _ in range(100)]
        run.run(
            [
                Ask(0.5 + 0.0005 * number, workloads.ids(chance, size), 1)
                for number, size in enumerate(sizes)
            ]
        )
        assert max(run.shares()) <= 40, run.shares()
        tokens = Counter[int]()
        for one in run.served:
            tokens[one.engine] += len(one.ask.tokens)
        assert max(tokens.values()) <= 0.29 * sum(sizes), tokens


def test_B08_equal_endpoints_have_equal_finite_scores() -> None:
    """Protected by `cost.py` dividing by speeds and block sizes alone; red with a cost that is set
    against the candidates' range."""
    scorer = build_scorer("cost-scorer", {})
    for load in (Load(), IDLE, Load(waiting=7, running=7, kv_usage=1.0)):
        for count in (1, 3):
            pools = Candidates.of([pod(number, load) for number in range(count)])
            for request in (ASKED, Request(id="r", api="", path="/")):
                scores = np.asarray(scorer.score(request, pools))
                assert np.isfinite(scores).all()
                assert len(set(scores.tolist())) == 1


def test_B11_a_hot_prefix_beyond_one_engine_uses_all_of_them() -> None:
    """Protected by what a cost counts besides the prompt. Red without that: next to nothing has to
    be computed where the prompt is held, so that the first engine keeps nearly all."""
    chance, run = Random(2), fleet(seed=2)
    prompt = workloads.ids(chance, 4096)
    run.run([Ask(0.0, prompt, 1)])
    run.run([Ask(1.0 + at, prompt, 200) for at in workloads.arrivals(chance, 16, 300)])
    assert max(run.shares()) <= 150, run.shares()
    assert min(run.shares()) >= 30, run.shares()


def test_B12_one_overloaded_endpoint_changes_nothing_among_the_others() -> None:
    """Protected by costs in seconds; red where they are set against the busiest candidate's."""
    warm = pod(1, match=Match(896, Source.PRECISE))
    others = [warm, pod(2), pod(3, replace(IDLE, waiting=1, running=2))]
    alone = costs(*others).total
    beside = costs(*others, pod(4, replace(IDLE, waiting=200, running=200, kv_usage=1.0))).total
    assert beside[:3].tolist() == alone.tolist()
    assert alone.argmin() == 0


async def test_B19_questions_that_outlive_their_decision_are_few_and_end() -> None:
    """Protected by `max_calls` of `Tokens._ask`; red without it: one call for each prompt."""
    gate = asyncio.Event()
    most = 0

    async def stuck(*_: object) -> bytes:
        await gate.wait()
        return b'{"tokens":[]}'

    async with open_desk(tokenizer=stuck, then=gate.set) as desk:
        outcomes: list[object] = []

        async def one(number: int) -> None:
            nonlocal most
            outcomes.append(await desk.route(ask(f"prompt {number} " * 40)))
            most = max(most, desk.tokens.calls)

        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(one(number))
        assert len(outcomes) == 200
        assert most <= 16
        gate.set()
        for _ in range(1000):
            if not desk.tokens.calls:
                break
            await asyncio.sleep(0.005)
        assert desk.tokens.calls == 0


async def test_B21_a_port_that_changes_is_followed_by_the_next_request() -> None:
    """Protected by `Endpoints.replace`, which takes over a member's new address; red when a member
    that is known stays as it was."""
    async with open_desk(1) as desk:
        before = (await desk.served(ask("one"))).destination
        moved = _moved(desk, 9001)
        desk.pool.replace([moved], desk.now)
        desk.pool.endpoints.set_ready(moved.id, True, desk.now)
        after = (await desk.served(ask("two"))).destination
    assert before == "10.0.0.0:8000"
    assert after == "10.0.0.0:9001"


def _moved(desk: Desk, port: int) -> Member:
    (member,) = desk.members
    assert member.id.pool == POOL
    return Member(id=member.id, address=f"10.0.0.0:{port}")


@pytest.mark.parametrize(
    ("tokens", "cached", "running", "word"),
    [
        (16, 0, 8, "cheaper-here"),
        (960, 960, 8, "cached"),
        (960, 940, 8, "cheaper-here"),
        (960, 0, 0, "cheaper-here"),
        (960, 0, 8, "split"),
    ],
    ids=["short", "cached", "nearly-cached", "nobody-disturbed", "long"],
)
def test_B24_only_what_is_cheaper_elsewhere_is_split(
    tokens: int, cached: int, running: int, word: str
) -> None:
    """Protected by `CostPd.compare`; red when it says yes to everything."""
    asked = Request(id="r", api="c", path="/", prompt_tokens=tokens, exact=True, output_tokens=64)
    here = pod(1, replace(IDLE, running=running), match=Match(cached, Source.PRECISE))
    decider = CostPd()
    said = decider.decide(asked, here)
    if said == "split":
        said = decider.compare(asked, here, pod(2))
    assert said == word


async def test_B17_equal_endpoints_are_chosen_at_random_by_cost_too() -> None:
    """Protected by the picker's ties, which cost keeps: equal loads have equal bits. Red when the
    scorer tells equal endpoints apart."""
    shares: Counter[str] = Counter()
    async with open_desk(4) as desk:
        for _ in range(400):
            route = await desk.route(ask())
            route.progress.reset(answered=False)
            shares[route.destination] += 1
    assert len(shares) == 4
    assert min(shares.values()) >= 65, shares
