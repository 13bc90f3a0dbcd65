"""What a request costs, term by term in numbers, and what the decider by cost makes of it."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from epp.errors import PluginError
from epp.framework import (
    Candidates,
    Endpoint,
    Load,
    Match,
    Request,
    Role,
    Source,
    Speeds,
    registry,
)
from epp.framework.cost import Cost, CostRules, cost
from epp.framework.registry import Kind, build_scorer
from epp.plugins.deciders.cost_pd import CostPd
from epp.request.split import Part, Wish, prefill
from tests.fakes.endpoints import endpoint
from tests.fakes.plans import Booth, default_built

SPEEDS = Speeds(
    prefill_tokens_per_s=1000.0,
    decode_s_per_token=0.1,
    decode_s_per_block=0.001,
    pull_tokens_per_s=10_000.0,
    pull_s=0.05,
)
IDLE = Load(waiting=0, running=0, kv_usage=0.0, active_blocks=0.0, total_blocks=1000)
RULES = CostRules(batch_growth=0.01, harm=0.5, coming=0.25)
ASKED = Request(
    id="r",
    api="completions",
    path="/",
    prompt_tokens=960,
    output_tokens=64,
    exact=True,
    keys=tuple(range(15)),
    whole="",
)
"""1024 tokens with its answer: 64 engine blocks."""


def pod(number: int = 0, load: Load = IDLE, **fields: Any) -> Endpoint:
    return endpoint(number, load=load, **{"speeds": SPEEDS, **fields})


def costs(*pods: Endpoint, request: Request = ASKED, rules: CostRules = RULES) -> Cost:
    return cost(request, Candidates.of(pods), rules)


def parts(load: Load = IDLE, request: Request = ASKED, **fields: Any) -> dict[str, float]:
    return costs(pod(0, load, **fields), request=request).parts(0)


def test_an_idle_endpoint_costs_the_prompt_and_what_that_keeps_from_the_next() -> None:
    assert parts() == {
        "wait": 0.0,
        "compute": pytest.approx(0.96),
        "slowdown": 0.0,
        "pressure": 0.0,
        "transfer": 0.0,
        "stall": pytest.approx(0.24),
        "crowding": 0.0,
        "herd": 0.0,
    }


@pytest.mark.parametrize(("trust", "seconds"), [(1.0, 0.32), (0.5, 0.64), (0.0, 0.96)])
def test_what_is_cached_is_not_computed_as_far_as_it_is_trusted(
    trust: float, seconds: float
) -> None:
    match = Match(640, Source.PREDICTED, trust)
    assert parts(match=match)["compute"] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("load", "seconds"),
    [
        (Load(waiting=0, reserved_pending=2, reserved_prefill_tokens=3000), 3.0),
        (Load(waiting=2, reserved_pending=2, reserved_prefill_tokens=3000), 3.0),
        (Load(waiting=5, reserved_pending=2, reserved_prefill_tokens=3000), 3.0 + 3 * 1.024),
        (Load(waiting=2), 2 * 1.024),
        (Load(), 0.0),
    ],
)
def test_prompts_ahead_are_waited_for_each_once(load: Load, seconds: float) -> None:
    assert parts(load)["wait"] == pytest.approx(seconds)


def test_each_answer_beside_this_one_makes_every_step_longer() -> None:
    """Of 10: 10 * 1 % of 0.1 s, and 10 * 64 blocks of 1 ms, 64 times."""
    found = parts(replace(IDLE, running=10))
    assert found["slowdown"] == pytest.approx(64 * (0.01 + 0.64))
    assert found["crowding"] == pytest.approx(0.5 * 64 * (0.01 + 0.64))
    assert found["stall"] == pytest.approx((0.25 + 0.5 * 10) * 0.96)


def test_blocks_in_use_count_where_the_engine_reports_more_than_is_usual() -> None:
    """Their requests are slowed by this one's blocks alone."""
    found = parts(replace(IDLE, running=1, active_blocks=300.0, reserved_decode_blocks=100))
    assert found["slowdown"] == pytest.approx(64 * (0.001 + 0.4))
    assert found["crowding"] == pytest.approx(0.5 * 64 * (0.001 + 0.064))


def test_requests_that_wait_are_answers_to_come_and_ours_are_among_the_running() -> None:
    one = parts(Load(waiting=3, running=4, reserved_requests=9, reserved_pending=5))
    other = parts(Load(waiting=5, running=4))
    assert one["slowdown"] == other["slowdown"]


def test_blocks_that_are_not_free_are_waited_for() -> None:
    """20 of 1,000 are lacking: the time of 128 tokens gives all of them back."""
    found = parts(replace(IDLE, active_blocks=900.0, reserved_decode_blocks=56))
    assert found["pressure"] == pytest.approx(12.8 * 20 / 1000)
    assert parts(replace(IDLE, active_blocks=900.0))["pressure"] == 0.0


def test_a_prompt_for_another_endpoint_travels_there_and_is_not_answered_here() -> None:
    peer = pod(9, match=Match(460, Source.PRECISE))
    asked = replace(ASKED, peer=peer)
    found = parts(replace(IDLE, running=5), asked)
    assert found["transfer"] == pytest.approx(0.05 + 500 / 10_000)
    assert (found["slowdown"], found["crowding"]) == (0.0, 0.0)
    slow = parts(IDLE, asked, speeds=replace(SPEEDS, pull_tokens_per_s=1000.0))
    assert slow["transfer"] == pytest.approx(0.05 + 0.5)


def test_an_unknown_engine_counts_as_the_busiest_that_is_known() -> None:
    busy = Load(waiting=4, running=1, kv_usage=0.1, active_blocks=100.0, total_blocks=1000)
    full = Load(waiting=0, running=9, kv_usage=0.9, active_blocks=900.0, total_blocks=1000)
    worst = Load(waiting=4, running=9, kv_usage=0.9, active_blocks=900.0, total_blocks=1000)
    found = costs(pod(0, Load()), pod(1, busy), pod(2, full), pod(3, worst)).total
    assert found[0] == pytest.approx(found[3])
    assert found[0] > max(found[1], found[2])


def test_where_nobody_says_anything_our_own_requests_decide() -> None:
    ours = Load(reserved_requests=1, reserved_pending=1, reserved_prefill_tokens=100)
    found = costs(pod(0, ours), pod(1, Load())).total
    assert found[0] > found[1]


def test_usage_says_what_is_in_use_where_an_engine_never_said_how_many_blocks_it_has() -> None:
    """Fault B04: 95 % of the one is more than 5 % of the other."""
    one, other = (
        Load(waiting=0, running=1, kv_usage=0.95),
        Load(waiting=0, running=1, kv_usage=0.05),
    )
    found = costs(pod(0, one), pod(1, other)).slowdown
    assert found[0] == pytest.approx(64 * (0.001 + 0.95 * 8.192))
    assert found[0] > found[1]


def test_an_overloaded_endpoint_changes_nothing_among_the_others() -> None:
    others = pod(1, replace(IDLE, waiting=2)), pod(2, replace(IDLE, running=7))
    alone = costs(*others).total
    beside = costs(*others, pod(3, replace(IDLE, waiting=500, running=200))).total
    assert beside[:2].tolist() == alone.tolist()


def test_an_idle_endpoint_never_looks_slower_than_the_limit() -> None:
    """A bad measurement is tried again; a busy endpoint is taken by its word, or nearly."""
    awful = replace(SPEEDS, prefill_tokens_per_s=1.0, decode_s_per_token=100.0)
    busy = replace(IDLE, running=1)
    fine = pod(0), pod(1)
    found = costs(*fine, pod(2, speeds=awful), pod(3, busy, speeds=awful)).compute
    assert found.tolist() == pytest.approx([0.96, 0.96, 8 * 0.96, 960.0 / 1.5])
    honest = replace(SPEEDS, prefill_tokens_per_s=130.0)
    assert costs(*fine, pod(2, speeds=honest)).compute[2] == pytest.approx(960 / 130 / 1.5)


@pytest.mark.parametrize(
    ("speed", "seconds"),
    [(1000.0, 0.96), (700.0, 0.96), (1400.0, 0.96), (500.0, 1.28), (4000.0, 0.36)],
)
def test_measured_speeds_count_as_far_as_they_differ_by_more_than_chance(
    speed: float, seconds: float
) -> None:
    """1.5 is taken for chance, and taken off what is more."""
    equals = [pod(number) for number in range(3)]
    other = pod(3, speeds=replace(SPEEDS, prefill_tokens_per_s=speed, decode_s_per_token=0.1))
    assert costs(*equals, other).compute.tolist() == pytest.approx([0.96] * 3 + [seconds])


def herd(*given: int, rules: CostRules = RULES, cached: int = 640) -> list[float]:
    """Seconds at endpoints that were given so many equal requests; the first holds the prompt."""
    ids = [pod(number).id for number in range(len(given))]
    twins = {ident: count for ident, count in zip(ids, given, strict=True) if count}
    pods = [pod(number) for number in range(len(given))]
    pods[0] = replace(pods[0], match=Match(cached, Source.PRECISE))
    found: list[float] = costs(
        *pods, request=replace(ASKED, twins=twins), rules=rules
    ).herd.tolist()
    return found


def test_few_equal_requests_stay_where_their_prompt_is() -> None:
    assert herd(7, 0, 0, 0) == [0.0] * 4
    assert herd(8, 0, 0, 0)[0] > 0.0


def test_what_is_beyond_a_fair_share_of_equal_requests_has_nothing_of_a_cached_prompt() -> None:
    """Of 40 on 4 endpoints 12: a 13th pays the 0.64 s and 0.16 s for the next, a 14th twice."""
    assert herd(11, 9, 9, 10) == [0.0] * 4
    assert herd(12, 9, 9, 9) == pytest.approx([0.8, 0.0, 0.0, 0.0])
    assert herd(13, 9, 9, 8) == pytest.approx([2 * 0.8, 0.0, 0.0, 0.0])


def test_nothing_held_is_nothing_lost_by_being_one_of_many() -> None:
    assert herd(20, 0, 0, 0, cached=0) == [0.0] * 4


def test_a_single_endpoint_may_be_given_all_of_them() -> None:
    assert herd(500) == [0.0]


def test_a_herd_says_nothing_about_where_a_prompt_is_computed() -> None:
    twins = {pod(0).id: 30}
    here = pod(0, match=Match(640, Source.PRECISE))
    found = costs(here, pod(1), request=replace(ASKED, twins=twins))
    assert found.herd[0] > 0.0
    assert found.prompt[0] == pytest.approx(0.32 + 0.08)
    assert found.total[0] == pytest.approx(found.prompt[0] + found.herd[0])


def test_an_answer_of_no_tokens_slows_nobody() -> None:
    found = parts(replace(IDLE, running=10), replace(ASKED, output_tokens=0))
    assert (found["slowdown"], found["crowding"]) == (0.0, 0.0)


def test_answers_are_expected_to_be_as_long_as_is_usual() -> None:
    long, usual = replace(ASKED, output_tokens=10**6), replace(ASKED, output_tokens=128)
    busy = replace(IDLE, running=3)
    assert parts(busy, long)["slowdown"] == parts(busy, usual)["slowdown"]


def test_a_second_scores_one_half() -> None:
    (score,) = build_scorer("cost-scorer", {"coming": 0}).score(
        replace(ASKED, prompt_tokens=1000), Candidates.of([pod()])
    )
    assert score == pytest.approx(0.5)
    (score,) = build_scorer("cost-scorer", {"coming": 0, "scaleSeconds": 3}).score(
        replace(ASKED, prompt_tokens=1000), Candidates.of([pod()])
    )
    assert score == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("kind", "parameters", "word"),
    [
        (Kind.SCORER, {"scaleSeconds": 0}, "scaleSeconds"),
        (Kind.SCORER, {"scaleSeconds": "inf"}, "scaleSeconds"),
        (Kind.SCORER, {"answerTokens": 0}, "answerTokens"),
        (Kind.SCORER, {"queuedTokens": 0}, "queuedTokens"),
        (Kind.SCORER, {"usualTokens": -1}, "usualTokens"),
        (Kind.SCORER, {"batchGrowth": 1.5}, "batchGrowth"),
        (Kind.SCORER, {"batchGrowth": -0.1}, "batchGrowth"),
        (Kind.SCORER, {"harm": -1}, "harm"),
        (Kind.SCORER, {"harm": "nan"}, "harm"),
        (Kind.SCORER, {"coming": -1}, "coming"),
        (Kind.SCORER, {"coming": "inf"}, "coming"),
        (Kind.SCORER, {"slowest": 0.5}, "slowest"),
        (Kind.SCORER, {"slowest": "inf"}, "slowest"),
        (Kind.SCORER, {"odd": 1}, "odd"),
        (Kind.DECIDER, {"marginSeconds": -1}, "marginSeconds"),
        (Kind.DECIDER, {"marginSeconds": "nan"}, "marginSeconds"),
        (Kind.DECIDER, {"harm": -1}, "harm"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    kind: Kind, parameters: dict[str, Any], word: str
) -> None:
    name = "cost-scorer" if kind is Kind.SCORER else "cost-pd-decider"
    with pytest.raises(PluginError, match=word):
        registry.types(kind)[name].build(parameters)


BUSY = replace(IDLE, waiting=4, running=4)


@pytest.mark.parametrize(
    ("request_", "destination", "word"),
    [
        (replace(ASKED, scored=False), pod(1, BUSY), "load-only"),
        (replace(ASKED, exact=False), pod(1, BUSY), "tokens-estimated"),
        (ASKED, pod(1, BUSY, match=Match(960, Source.PRECISE)), "cached"),
        (replace(ASKED, prompt_tokens=40), pod(1), "cheaper-here"),
        (ASKED, pod(1, BUSY), "split"),
        (ASKED, pod(1), "split"),
    ],
)
def test_a_split_is_looked_into_where_it_could_be_cheaper(
    request_: Request, destination: Endpoint, word: str
) -> None:
    assert CostPd().decide(request_, destination) == word


@pytest.mark.parametrize(
    ("here", "there", "word"),
    [
        (IDLE, IDLE, "cheaper-here"),
        (BUSY, IDLE, "split"),
        (BUSY, replace(IDLE, waiting=8), "cheaper-here"),
        (IDLE, replace(IDLE, waiting=8), "cheaper-here"),
        (replace(IDLE, running=8), IDLE, "split"),
    ],
    ids=["both-idle", "busy-here", "busier-there", "busy-there", "answers-here"],
)
def test_the_pair_is_compared_by_the_load_of_both(here: Load, there: Load, word: str) -> None:
    assert CostPd().compare(ASKED, pod(1, here), pod(2, there)) == word


def test_what_the_prefill_endpoint_holds_counts_for_it() -> None:
    busy_there = replace(IDLE, waiting=4)
    holds = Match(896, Source.PRECISE)
    here = replace(IDLE, waiting=4, running=1)
    assert CostPd().compare(ASKED, pod(1, here), pod(2, busy_there, match=holds)) == "split"
    assert CostPd().compare(ASKED, pod(1, here), pod(2, replace(IDLE, waiting=5))) != "split"


@pytest.mark.parametrize(("margin", "word"), [(0.8, "split"), (0.82, "cheaper-here")])
def test_a_split_has_to_save_the_margin(margin: float, word: str) -> None:
    """Computing takes 0.96 s in both places, and half of that from who comes next; it holds up 10
    answers here, or travels for 0.146 s: 0.814 s are saved."""
    here = replace(IDLE, running=10)
    assert CostPd(margin_seconds=margin).compare(ASKED, pod(1, here), pod(2)) == word


def split(*pods: Endpoint, destination: Endpoint) -> Part:
    built = default_built("cost")
    return prefill(
        Wish(
            request=ASKED,
            destinations=(destination,),
            eligible=Candidates.of([destination, *pods]),
            built=built,
            course=built.handler.plugin.course(ASKED, ("decode", "prefill")),
            chance=Random(1),
            ballot=Booth().ballot,
            normal=True,
        )
    )


def test_the_last_word_is_said_of_the_endpoint_that_the_prefill_profile_chose() -> None:
    busy = pod(1, BUSY, role=Role.DECODE)
    loaded = pod(2, replace(IDLE, waiting=30), role=Role.PREFILL)
    idle = pod(3, role=Role.PREFILL)
    part = split(loaded, idle, destination=busy)
    assert part.why == "split"
    assert part.selection is not None
    assert part.selection.chosen[0].id.name == "pod-3"
    refused = split(loaded, destination=busy)
    assert refused.why == "cheaper-here"
