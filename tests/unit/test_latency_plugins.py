"""Limits of a request against the times that are expected: in numbers, and who is preferred."""

from typing import Any

import numpy as np
import pytest

from epp import protocol
from epp.errors import PluginError
from epp.framework import (
    Candidates,
    Endpoint,
    LimitKeeper,
    Load,
    Match,
    Request,
    Source,
    Speeds,
    registry,
)
from epp.framework.cost import CostRules, expected
from epp.framework.latency import headroom
from epp.request.plan.live import build
from epp.request.plan.resolve import resolve
from tests.fakes.desk import ask, open_desk
from tests.fakes.endpoints import endpoint

SPEEDS = Speeds(
    prefill_tokens_per_s=1000.0,
    decode_s_per_token=0.02,
    decode_s_per_block=0.0,
    pull_tokens_per_s=10_000.0,
    pull_s=0.05,
)


def pod(number: int, *, queued: int = 0, running: int = 0, **given: Any) -> Endpoint:
    """One with so many prompt tokens of ours to compute; 1000 of them take a second."""
    load = Load(
        waiting=0,
        running=running,
        kv_usage=0.0,
        active_blocks=0.0,
        total_blocks=100_000,
        reserved_requests=running + bool(queued),
        reserved_pending=int(bool(queued)),
        reserved_prefill_tokens=queued,
    )
    return endpoint(number, **{"load": load, "speeds": SPEEDS, **given})


def asked(*, ttft: float | None = None, tpot: float | None = None, **given: Any) -> Request:
    given = {"prompt_tokens": 640, "output_tokens": 64, "keys": tuple(range(10)), **given}
    return Request(id="r", api="chat", path="/", slo_ttft_s=ttft, slo_tpot_s=tpot, **given)


def scores(request: Request, *pods: Endpoint, **parameters: Any) -> list[float]:
    scorer = registry.find("latency-scorer")
    assert scorer is not None
    found = scorer.build(parameters).score(request, Candidates.of(pods))
    return [round(float(score), 4) for score in found]


def kept(request: Request, *pods: Endpoint, **parameters: Any) -> list[bool]:
    found = registry.find("slo-headroom-tier-filter")
    assert found is not None
    return [bool(one) for one in found.build(parameters).keep(request, Candidates.of(pods))]


def busy(*queued: int) -> list[Endpoint]:
    return [pod(number, queued=each) for number, each in enumerate(queued)]


# What is expected


def test_the_first_token_waits_for_the_queue_and_for_what_is_not_cached() -> None:
    warm = pod(0, queued=500, match=Match(320, Source.PRECISE))
    times = expected(asked(), Candidates.of([warm, pod(1)]), CostRules())
    assert times.first_token.tolist() == pytest.approx([0.5 + 0.32, 0.64])


def test_a_token_takes_a_step_that_grows_with_the_answers_beside_it() -> None:
    times = expected(asked(), Candidates.of([pod(0), pod(1, running=50)]), CostRules())
    assert times.next_token.tolist() == pytest.approx([0.02, 0.02 * 1.5])


def test_who_computes_for_another_one_writes_nothing_and_sends_what_that_lacks() -> None:
    times = expected(asked(peer=pod(9)), Candidates.of([pod(0, running=50)]), CostRules())
    assert times.first_token.tolist() == pytest.approx([0.64 + 0.05 + 0.064])
    assert times.next_token.tolist() == [0.0]


def test_headroom_is_the_limit_less_the_time() -> None:
    left = headroom(asked(ttft=1.0, tpot=0.025), Candidates.of([pod(0), pod(1, running=50)]))
    assert left.first.tolist() == pytest.approx([0.36, 0.36])
    assert left.next.tolist() == pytest.approx([0.005, -0.005])
    assert left.fits.tolist() == [True, False]


def test_nothing_is_expected_of_the_silent_nor_for_what_nobody_could_read() -> None:
    pods = Candidates.of([pod(0), pod(1, load=Load())])
    assert headroom(asked(ttft=1.0), pods).fits.tolist() == [True, False]
    assert not headroom(asked(ttft=1.0, scored=False), pods).known.any()


# Who stays


def test_those_that_meet_every_named_limit_stay() -> None:
    pods = [pod(0), pod(1, queued=2000), pod(2, running=50)]
    assert kept(asked(ttft=1.0), *pods) == [True, False, True]
    assert kept(asked(tpot=0.025), *pods) == [True, True, False]
    assert kept(asked(ttft=1.0, tpot=0.025), *pods) == [True, False, False]


@pytest.mark.parametrize("limits", [{}, {"ttft": 0.1}, {"ttft": 100.0, "tpot": 1.0}])
def test_all_stay_without_limits_and_where_nobody_differs(limits: dict[str, float]) -> None:
    assert kept(asked(**limits), *busy(0, 2000)) == [True, True]


def test_one_whose_engine_says_nothing_stays_only_beside_others_that_miss_the_limits() -> None:
    silent = pod(2, load=Load())
    assert kept(asked(ttft=1.0), pod(0), silent) == [True, False]
    assert kept(asked(ttft=0.1), pod(0), silent) == [True, True]


def test_a_share_of_requests_goes_to_those_that_miss_the_limits() -> None:
    pods = Candidates.of(busy(0, 2000))
    found = registry.find("slo-headroom-tier-filter")
    assert found is not None
    explores = found.build({"epsilonExploreNeg": 0.25})
    request = asked(ttft=1.0)
    drawn = [explores.keep(_renamed(request, number), pods) for number in range(2000)]
    assert {tuple(each.tolist()) for each in drawn} == {(True, False), (False, True)}
    assert sum(bool(each[1]) for each in drawn) == pytest.approx(500, abs=100)
    assert kept(request, *pods, epsilonExploreNeg=1.0) == [False, True]
    assert kept(request, *pods, epsilonExploreNeg=0.0) == [True, False]


def _renamed(request: Request, number: int) -> Request:
    return Request(id=f"r{number}", api="", path="", prompt_tokens=640, slo_ttft_s=1.0)


# How long the affinity to a cached prefix lasts


def affine(*pods: Endpoint, **parameters: Any) -> list[bool]:
    """Who stays of a prompt that takes a second: those with all of it, unless they are far behind
    in the times that are expected."""
    found = registry.find("prefix-cache-affinity-filter")
    assert found is not None
    plugin = found.build({"ttftSource": "latencyPredictor", **parameters})
    request = asked(prompt_tokens=1024, keys=tuple(range(16)))
    return [bool(one) for one in plugin.keep(request, Candidates.of(pods))]


def test_affinity_lasts_until_the_expected_delay_with_this_prompt_in_it() -> None:
    """The cold one would compute 1.024 s, so that the warm one may be that much further behind."""
    for queued, stays in ((2500, [True, False]), (2600, [True, True])):
        pods = [pod(0, queued=queued, match=Match(1024, Source.PRECISE)), pod(1)]
        assert affine(*pods, maxTTFTPenaltyMs=1500) == stays, queued
    assert affine(*pods, maxTTFTPenaltyMs=0) == [True, False]


def test_affinity_goes_by_the_speed_of_each_endpoint_and_by_the_soonest_of_each_side() -> None:
    held = Match(1024, Source.PRECISE)
    slow = Speeds(prefill_tokens_per_s=100.0)
    warm, far = pod(0, queued=3000, match=held), pod(1, queued=90_000, match=held)
    cold = pod(2), pod(3, queued=90_000)
    assert affine(warm, far, *cold, maxTTFTPenaltyMs=15_000) == [True, True, False, False]
    slowly = pod(0, queued=3000, match=held, speeds=slow)
    assert affine(slowly, far, *cold, maxTTFTPenaltyMs=15_000) == [True] * 4


def test_everybody_stays_where_nothing_is_expected_of_one_side() -> None:
    held, silent = Match(1024, Source.PRECISE), Load()
    assert affine(pod(0, match=held), pod(1)) == [True, False]
    assert affine(pod(0, match=held, load=silent), pod(1)) == [True, True]
    assert affine(pod(0, match=held), pod(1, load=silent)) == [True, True]
    assert affine(pod(0, match=held), pod(1, load=silent), pod(2)) == [True, False, False]


# Who is preferred


@pytest.mark.parametrize(
    ("strategy", "wanted"), [("least", [0.0, 0.75, 1.0]), ("most", [1.0, 0.25, 0.0])]
)
def test_of_those_that_meet_the_limits_the_tightest_is_best_or_the_freest(
    strategy: str, wanted: list[float]
) -> None:
    pods = busy(100, 400, 500, 9000)
    assert scores(asked(ttft=1.2), *pods, headroomSelectionStrategy=strategy) == [*wanted, 0.0]


def test_both_limits_count_by_their_weights() -> None:
    pods = [pod(0, running=10), pod(1, queued=500, running=10), pod(2, running=60)]
    limits = asked(ttft=5.0, tpot=0.1)
    assert scores(limits, *pods, headroomSelectionStrategy="most") == [1.0, 0.196, 0.8]
    even = {"ttftWeight": 3, "tpotWeight": 3, "headroomSelectionStrategy": "most"}
    assert scores(limits, *pods, **even) == [1.0, 0.49, 0.5]


def test_a_limit_in_which_nobody_differs_leaves_all_to_the_other() -> None:
    pods = [pod(0, running=10), pod(1, running=30), pod(2, running=20)]
    assert scores(asked(ttft=5.0, tpot=0.1), *pods) == [0.0, 1.0, 0.5]
    assert scores(asked(ttft=5.0), *pods) == [1.0, 0.0, 0.5], "not packed by what has no limit"


def test_equal_endpoints_are_all_best() -> None:
    for limits in ({}, {"ttft": 5.0, "tpot": 1.0}, {"ttft": 0.1}):
        assert scores(asked(**limits), *busy(100, 100)) == [1.0, 1.0]


def test_without_limits_the_shortest_time_is_best() -> None:
    assert scores(asked(), *busy(100, 600, 1100)) == [1.0, 0.5, 0.0]
    mixed = pod(0, queued=100, running=40), pod(1, queued=600), pod(2, queued=1100)
    assert scores(asked(), *mixed) == [0.8, 0.6, 0.2]
    assert scores(asked(), *mixed, ttftWeight=1, tpotWeight=0) == [1.0, 0.5, 0.0]


def test_where_all_miss_the_limits_idle_ones_come_first() -> None:
    slow = Speeds(prefill_tokens_per_s=500.0, decode_s_per_token=0.02)
    pods = [pod(0, running=1), pod(1, speeds=slow), pod(2)]
    assert scores(asked(ttft=0.1), *pods) == [0.0, 0.0, 1.0]


def test_where_all_miss_them_and_work_the_first_token_weighs_most() -> None:
    token, first, neither = pod(0, running=90), pod(1, queued=900), pod(2, queued=900, running=90)
    limits = asked(ttft=1.0, tpot=0.025)
    assert scores(limits, token, first, neither) == [1.0, 0.0, 0.0]
    assert scores(limits, first, neither) == [1.0, 0.0]
    assert scores(limits, neither, pod(3, queued=1500, running=90)) == [1.0, 0.0]


def test_who_says_nothing_is_never_best() -> None:
    for limits in ({}, {"ttft": 5.0}, {"ttft": 0.1}):
        assert scores(asked(**limits), pod(0, queued=5000), pod(1, load=Load())) == [1.0, 0.0]


def test_load_and_match_are_mixed_where_nothing_is_expected() -> None:
    match = Match(320, Source.PRECISE)
    quiet = [
        pod(0, load=Load(kv_usage=0.5, reserved_pending=2), match=match),
        pod(1, load=Load(kv_usage=0.25, reserved_pending=0)),
        pod(2, load=Load(reserved_pending=1)),
    ]
    assert scores(asked(), *quiet) == [0.3333, 0.5833, 0.1667]
    only = {"compositeKVWeight": 0, "compositeQueueWeight": 0, "compositePrefixWeight": 2}
    assert scores(asked(), *quiet, **only) == [0.5, 0.0, 0.0]
    read = scores(asked(scored=False, keys=()), pod(0), pod(1, queued=10))
    assert read == [0.6667, 0.3333]


def test_no_candidates_are_no_scores() -> None:
    assert scores(asked()) == []
    assert np.asarray(kept(asked(ttft=1.0))).tolist() == []


@pytest.mark.parametrize(
    ("kind", "parameters", "said"),
    [
        ("latency-scorer", {"ttftWeight": -1}, "ttftWeight must lie between"),
        ("latency-scorer", {"ttftWeight": 0, "tpotWeight": 0}, "must not both be 0"),
        ("latency-scorer", {"compositeKVWeight": -0.1}, "compositeKVWeight must lie"),
        (
            "latency-scorer",
            {"compositeKVWeight": 0, "compositeQueueWeight": 0, "compositePrefixWeight": 0},
            "must not all be 0",
        ),
        ("latency-scorer", {"headroomSelectionStrategy": "some"}, "headroomSelectionStrategy"),
        ("slo-headroom-tier-filter", {"epsilonExploreNeg": 1.5}, "between 0 and 1"),
        ("predicted-latency-producer", {"sloBufferFactor": 0}, "sloBufferFactor must be"),
        ("predicted-latency-producer", {"samplingMean": 0}, "samplingMean must be"),
        ("predicted-latency-producer", {"contextTTL": "0s"}, "contextTTL must be"),
        (
            "predicted-latency-producer",
            {"maxDecodeTokenSamplesForPrediction": -1},
            "maxDecodeTokenSamplesForPrediction must",
        ),
        ("predicted-latency-producer", {"predictInProduce": False}, "predictInProduce must be"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    kind: str, parameters: dict[str, Any], said: str
) -> None:
    found = registry.find(kind)
    assert found is not None
    with pytest.raises(PluginError, match=said):
        found.build(parameters)


# From the header to the request

CONFIG = b"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: latency-scorer, parameters: {latencyPredictionInfoProducerName: predictor}}
- {type: slo-headroom-tier-filter}
- {type: predicted-latency-producer, name: predictor, parameters: {sloBufferFactor: 0.5}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: slo-headroom-tier-filter}, {pluginRef: latency-scorer}]
"""


def test_the_plan_tells_who_reads_what_is_expected() -> None:
    plan = resolve(CONFIG, "f")
    assert [use.reference for use in plan.producers["predicted-latency"]] == ["predictor"]
    readers = plan.consumers["predicted-latency"]
    assert sorted(readers) == ["latency-scorer", "slo-headroom-tier-filter"]


async def test_limits_reach_the_plugins_in_seconds_and_as_strict_as_the_producer_wants() -> None:
    limits = {protocol.SLO_TTFT_MS[0]: "750", protocol.SLO_TPOT_MS[1]: "40"}
    cases: tuple[tuple[bytes | None, float], ...] = ((None, 0.04), (CONFIG, 0.02))
    for text, tpot in cases:
        async with open_desk(built=None if text is None else build(resolve(text, "f"))) as desk:
            await desk.route(ask(), headers=limits)
            request = desk.witness.decisions[-1][1]
            assert (request.slo_ttft_s, request.slo_tpot_s) == (0.75, tpot)
            await desk.route(ask())
            request = desk.witness.decisions[-1][1]
            assert (request.slo_ttft_s, request.slo_tpot_s) == (None, None)


def test_the_producer_is_a_keeper_of_limits() -> None:
    found = registry.find("predicted-latency-producer")
    assert found is not None
    assert isinstance(found.build({}), LimitKeeper)


@pytest.mark.parametrize("use", [-0.1, 1.1])
def test_a_share_of_cache_that_none_can_be_counts_as_unknown(use: float) -> None:
    """Nothing is expected for what nobody could read: load alone decides then, by the composite."""
    odd = pod(0, load=Load(waiting=0, running=0, kv_usage=use))
    half, full = (
        pod(n, load=Load(waiting=0, running=0, kv_usage=u)) for n, u in ((1, 0.5), (2, 1))
    )
    unread = asked(scored=False)
    worst, middle, last = scores(unread, odd, half, full)
    assert middle > worst
    assert last == worst
