"""How full a pool is, and whom that concerns."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import NoEndpoint, PluginError, Saturated
from epp.framework import Candidates, Endpoint, Load, Request
from epp.framework.registry import find
from epp.request import saturation as room
from epp.request.ballot import Why
from epp.request.objectives import Objectives
from epp.request.plan.live import Named, build
from epp.request.plan.resolve import resolve
from tests.fakes.desk import ask, open_desk
from tests.fakes.endpoints import endpoint
from tests.fakes.plans import Booth

Numbers = tuple[int | None, float | None]


def pool(*loads: Numbers) -> Candidates:
    """Endpoints by waiting requests and KV cache use."""
    return Candidates.of(
        [
            endpoint(number, load=Load(waiting=waiting, kv_usage=kv_usage))
            for number, (waiting, kv_usage) in enumerate(loads)
        ]
    )


def plugin(name: str, **parameters: Any) -> Any:
    found = find(name)
    assert found is not None
    return found.build(parameters)


def saturation(
    candidates: Candidates, name: str = "utilization-detector", **parameters: Any
) -> Any:
    return plugin(name, **parameters).saturation(candidates)


def shed(priority: int, ready: Any, detector: Any = None, booth: Booth | None = None) -> None:
    used = detector or plugin("utilization-detector")
    room.shed(priority, Named("detector", used), (booth or Booth()).ballot, ready)


@pytest.mark.parametrize(
    ("loads", "full"),
    [
        ([(0, 0.0)], 0.0),
        ([(5, 0.0)], 1.0),
        ([(0, 0.8)], 1.0),
        ([(2, 0.6)], 0.75),
        ([(4, 0.2)], 0.8),
        ([(50, 1.0)], 10.0),
        ([(10, 0.0), (0, 0.0)], 1.0),
        ([(0, 0.4), (0, 0.0)], 0.25),
        ([(None, None)], 1.0),
        ([(None, None), (0, 0.0)], 0.5),
        ([(2, None)], 0.4),
        ([(None, 0.4)], 0.5),
        ([], 1.0),
    ],
)
def test_saturation_is_the_mean_of_what_is_scarcest(loads: list[Numbers], full: float) -> None:
    assert saturation(pool(*loads)) == pytest.approx(full)


@pytest.mark.parametrize("priority", [0, 1, 2**31 - 1])
def test_only_priorities_below_0_are_shed_and_only_they_are_measured(priority: int) -> None:
    shed(priority, lambda: pytest.fail("nobody has to be asked"))


def test_a_request_is_shed_where_the_pool_is_full_and_passes_below() -> None:
    shed(-1, lambda: pool((4, 0.79)))
    with pytest.raises(Saturated, match="system saturated, sheddable request dropped") as refusal:
        shed(-1, lambda: pool((5, 0.0)))
    assert (refusal.value.status, refusal.value.reason) == (429, "rejected-saturated")


def test_an_empty_pool_is_not_a_full_one() -> None:
    def nobody() -> Candidates:
        raise NoEndpoint("nobody")

    with pytest.raises(NoEndpoint):
        shed(-1, nobody)


LOADS = st.tuples(st.none() | st.integers(0, 10_000), st.none() | st.floats(0, 1))


@given(st.lists(LOADS, max_size=8), st.randoms(use_true_random=False))
def test_saturation_is_finite_and_does_not_depend_on_order(loads: list[Numbers], chance) -> None:
    shuffled = list(loads)
    chance.shuffle(shuffled)
    assert 0.0 <= saturation(pool(*loads)) < float("inf")
    assert saturation(pool(*shuffled)) == pytest.approx(saturation(pool(*loads)))


def test_thresholds_of_the_detector_are_where_an_endpoint_is_full() -> None:
    found = pool((10, 0.2), (0, 0.45))
    assert saturation(found, queueDepthThreshold=10, kvCacheUtilThreshold=0.9) == 0.75


@pytest.mark.parametrize(
    ("parameters", "stay"),
    [
        ({}, [True, False, False, False, True]),
        ({"headroom": 0.2}, [True, True, True, False, True]),
        ({"queueDepthThreshold": 7}, [True, True, False, False, True]),
        ({"kvCacheUtilThreshold": 0.95}, [True, False, True, False, True]),
    ],
)
def test_as_a_filter_it_keeps_who_is_below_the_limits(
    parameters: dict[str, Any], stay: list[bool]
) -> None:
    found = pool((4, 0.7), (5, 0.1), (0, 0.9), (None, None), (None, 0.1))
    asked = Request(id="r", api="c", path="/")
    assert list(plugin("utilization-detector", **parameters).keep(asked, found)) == stay
    assert all(plugin("utilization-detector", **parameters).keep(asked, pool((90, 1.0))))


def under_way(*charged: tuple[int, int]) -> Candidates:
    """Endpoints by our requests there and their prompt tokens."""
    return Candidates.of(
        [
            endpoint(number, load=Load(reserved_requests=requests, reserved_prefill_tokens=tokens))
            for number, (requests, tokens) in enumerate(charged)
        ]
    )


@pytest.mark.parametrize(
    ("parameters", "full", "stay"),
    [
        ({}, 0.75, [False, True]),
        ({"maxConcurrency": 50}, 1.5, [False, True]),
        ({"maxConcurrency": 50, "headroom": 2.0}, 1.5, [True, True]),
        ({"concurrencyMode": "tokens", "maxTokenConcurrency": 1000}, 1.0, [True, False]),
        ({"concurrencyMode": "hybrid", "maxTokenConcurrency": 1000}, 1.0, [True, True]),
        ({"concurrencyMode": "hybrid"}, 0.75, [False, True]),
    ],
)
def test_requests_or_tokens_under_way_fill_a_pool(
    parameters: dict[str, Any], full: float, stay: list[bool]
) -> None:
    found = under_way((110, 0), (40, 2000))
    assert saturation(found, "concurrency-detector", **parameters) == pytest.approx(full)
    kept = plugin("concurrency-detector", **parameters).keep(
        Request(id="r", api="c", path="/"), found
    )
    assert list(kept) == stay
    assert saturation(pool(), "concurrency-detector", **parameters) == 1.0


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("utilization-detector", {"queueDepthThreshold": 0}),
        ("utilization-detector", {"kvCacheUtilThreshold": 0}),
        ("utilization-detector", {"kvCacheUtilThreshold": 1.5}),
        ("utilization-detector", {"headroom": -0.1}),
        ("concurrency-detector", {"maxConcurrency": 0}),
        ("concurrency-detector", {"maxTokenConcurrency": 0}),
        ("concurrency-detector", {"headroom": -1}),
        ("concurrency-detector", {"concurrencyMode": "both"}),
        ("probabilistic-admitter", {"queueDepthThreshold": 0}),
        ("probabilistic-admitter", {"kvCacheUtilThreshold": 0}),
        ("probabilistic-admitter", {"kvCacheUtilThreshold": 1.5}),
        ("probabilistic-admitter", {"power": 0}),
        ("probabilistic-admitter", {"k": 0}),
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(
    name: str, parameters: dict[str, Any]
) -> None:
    (parameter,) = parameters
    with pytest.raises(PluginError, match=parameter):
        plugin(name, **parameters)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("utilization-detector", {"queueDepthThreshold": 1, "kvCacheUtilThreshold": 1.0}),
        ("concurrency-detector", {"maxConcurrency": 1, "maxTokenConcurrency": 1}),
        ("probabilistic-admitter", {"queueDepthThreshold": 1, "kvCacheUtilThreshold": 1.0}),
    ],
)
def test_the_tightest_limits_are_taken(name: str, parameters: dict[str, Any]) -> None:
    assert plugin(name, **parameters) is not None


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("utilization-detector", {"engine-metrics"}),
        ("concurrency-detector", {"inflight-load"}),
        ("probabilistic-admitter", {"engine-metrics"}),
        (
            "latency-slo-admitter",
            {"engine-metrics", "inflight-load", "predicted-latency", "prefix-match", "tokens"},
        ),
    ],
)
def test_what_they_read_is_known_to_who_feeds_them(name: str, reads: set[str]) -> None:
    found = find(name)
    assert found is not None
    assert found.consumes == reads


def test_who_is_just_at_a_limit_is_over_it() -> None:
    asked = Request(id="r", api="c", path="/")
    scarce, busy = pool((0, 0.8), (0, 0.79)), under_way((150, 0), (149, 0))
    assert list(plugin("utilization-detector").keep(asked, scarce)) == [False, True]
    roomy = plugin("concurrency-detector", maxConcurrency=100, headroom=0.5)
    assert list(roomy.keep(asked, busy)) == [False, True]


class Says:
    """A detector that says this, whoever asks."""

    def __init__(self, full: Any) -> None:
        self.full = full

    def saturation(self, _: Candidates, /) -> float:
        if isinstance(self.full, Exception):
            raise self.full
        return float(self.full)


@pytest.mark.parametrize(
    ("full", "why"),
    [(float("nan"), Why.NOT_FINITE), (float("inf"), Why.NOT_FINITE), (KeyError(), Why.RAISED)],
)
def test_a_detector_that_fails_sheds_nobody_and_is_counted(full: Any, why: str) -> None:
    booth = Booth()
    shed(-1, pool, Says(full), booth)
    assert booth.failures == [("detector", why)]


def low(**limits: float) -> Request:
    made = Request(id="r", api="c", path="/", priority=-1, prompt_tokens=100, output_tokens=100)
    return replace(made, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loads", "parameters", "share"),
    [
        ((0, 0.0), {}, 0.0),
        ((1, 0.0), {}, 300 * 0.2**5),
        ((2, 0.0), {}, 1.0),
        ((0, 0.4), {"power": 2, "k": 0.5}, 0.125),
        ((10_000, 1.0), {"power": 500, "k": 1e300}, 1.0),
        ((4, 0.0), {"queueDepthThreshold": 8, "power": 1, "k": 1}, 0.5),
        ((0, 0.3), {"kvCacheUtilThreshold": 0.6, "power": 1, "k": 1}, 0.5),
    ],
)
def test_the_fuller_the_pool_the_more_is_refused(
    loads: Numbers, parameters: dict[str, Any], share: float
) -> None:
    class Drawn(Random):
        value = 0.0

        def random(self) -> float:
            return self.value

    admitter, chance = plugin("probabilistic-admitter", **parameters), Drawn()
    for chance.value, served in ((share - 1e-9, False), (share + 1e-9, True)):
        if 0.0 <= chance.value < 1.0:
            assert admitter.admits(low(), pool(loads), chance) is served
    important = Request(id="r", api="c", path="/")
    chance.value = 0.0
    assert admitter.admits(important, pool(loads), chance)
    assert admitter.admits(low(), pool(), chance), "nobody at all is another refusal's business"


def waiting(running: int | None, kv_usage: float | None) -> Endpoint:
    return endpoint(0, load=Load(waiting=50, running=running, kv_usage=kv_usage))


@pytest.mark.parametrize(
    ("asked", "pods", "served"),
    [
        (low(slo_ttft_s=0.001), [waiting(9, 0.5)], False),
        (low(slo_tpot_s=1e-9), [waiting(9, 0.5)], False),
        (low(slo_ttft_s=1e9), [waiting(9, 0.5)], True),
        (low(), [waiting(9, 0.5)], True),
        (low(slo_ttft_s=0.001), [waiting(9, 0.5), waiting(0, 0.5)], True),
        (low(slo_ttft_s=0.001), [waiting(9, 0.5), waiting(9, 0.01)], True),
        (low(slo_ttft_s=0.001), [waiting(9, 0.02)], False),
        (low(slo_ttft_s=0.001), [waiting(None, None)], False),
        (Request(id="r", api="c", path="/", slo_ttft_s=0.001), [waiting(9, 0.5)], True),
        (low(slo_ttft_s=0.001), [], True),
    ],
)
def test_whoever_cannot_be_served_in_time_is_refused(
    asked: Request, pods: list[Endpoint], served: bool
) -> None:
    admitter = plugin("latency-slo-admitter")
    assert admitter.admits(asked, Candidates.of(pods), Random(1)) is served


def test_of_a_request_that_nobody_could_read_nothing_is_expected() -> None:
    asked = Request(id="r", api="c", path="/", priority=-1, slo_ttft_s=0.001, scored=False)
    admitter = plugin("latency-slo-admitter")
    assert admitter.admits(asked, Candidates.of([waiting(9, 0.5)]), Random(1))


REFUSING = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - {type: queue-scorer}
  - {type: probabilistic-admitter, parameters: {k: 1e9}}
  - {type: utilization-detector, parameters: {queueDepthThreshold: 1000}}
"""


async def test_an_admitter_of_the_configuration_refuses_with_429_and_shadow_hears_none() -> None:
    built = build(resolve(REFUSING.encode(), "here"))
    async with open_desk(2, built=built) as desk:
        desk.objectives.swap(Objectives(priorities={"batch": -1}))
        desk.report([9, 9])
        headers = {"x-llm-d-inference-objective": "batch"}
        refusal = await desk.decide(ask(), headers=headers)
        assert isinstance(refusal, Saturated)
        assert (refusal.status, refusal.reason) == (429, "rejected-saturated")
        assert "probabilistic-admitter refuses" in str(refusal)
        assert desk.reserved() == 0
        await desk.route(ask())
        desk.switch.switch("shadow")
        assert (await desk.route(ask(), headers=headers)).destination is None
