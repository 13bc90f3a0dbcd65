"""How long engines take from token to token, by what their pages' totals grew by."""

import pytest

from epp.framework import EndpointId, Incarnation, PoolId
from epp.state.endpoints import Endpoints, Member
from epp.state.load import LoadBook
from epp.state.metrics_page import EngineMetrics, StepTotals
from epp.state.pool import PoolState
from epp.state.prefix.index import PrefixIndex
from epp.state.prefix.predicted import PredictedIndex
from epp.state.reports import LoadReport
from epp.state.steps import LEAST_S, LEAST_STEPS, MOST_S, Steps

A = EndpointId(PoolId("p"), "a", 1)
LIFE = Incarnation(A, 1)


class Samples:
    """Pages of one life, and the samples that they made: steps, seconds, for how long."""

    def __init__(self) -> None:
        self.found: list[tuple[int, float, float]] = []
        self.steps = Steps(lambda _, steps, took_s, over_s, now: self._take(steps, took_s, over_s))

    def page(self, now: float, count: float, seconds: float, life: Incarnation = LIFE) -> None:
        self.steps.page(life, StepTotals(seconds, count), now)

    def _take(self, steps: int, took_s: float, over_s: float) -> None:
        self.found.append((steps, round(took_s, 6), over_s))


def test_what_totals_grew_by_is_a_sample_each_second() -> None:
    samples = Samples()
    for quarter in range(9):
        samples.page(quarter / 4, 100 + 25 * quarter, 7 + 0.5 * quarter)
    assert samples.found == [(100, 2.0, 1.0), (100, 2.0, 1.0)]


def test_a_first_page_says_nothing_of_the_present() -> None:
    samples = Samples()
    samples.page(0.0, 1e6, 2e4)
    samples.page(LEAST_S, 1e6, 2e4)
    assert samples.found == []


def test_idle_time_is_no_part_of_a_sample() -> None:
    samples = Samples()
    for second in range(60):
        samples.page(float(second), 100, 5)
    samples.page(60.0, 100 + LEAST_STEPS, 6)
    assert samples.found == [(LEAST_STEPS, 1.0, 1.0)]


def test_few_steps_are_waited_for_but_not_for_ever() -> None:
    samples = Samples()
    samples.page(0.0, 0, 0)
    samples.page(1.0, 1, 0.1)
    samples.page(2.0, LEAST_STEPS, 1.6)
    assert samples.found == [(LEAST_STEPS, 1.6, 2.0)]
    samples.page(2.5, LEAST_STEPS + 1, 1.7)
    samples.page(3.0 + MOST_S, LEAST_STEPS + 2, 1.8)
    samples.page(3.5 + MOST_S, 3 * LEAST_STEPS, 5.0)
    samples.page(4.0 + MOST_S, 3 * LEAST_STEPS, 5.0)
    assert samples.found[1:] == [(2 * LEAST_STEPS - 2, 3.2, 1.0)]


def test_totals_that_fell_or_are_gone_begin_anew() -> None:
    samples = Samples()
    samples.page(0.0, 1000, 50)
    samples.page(1.0, 20, 1)
    assert samples.found == []
    samples.page(2.0, 120, 3)
    assert samples.found == [(100, 2.0, 1.0)]
    samples.steps.page(LIFE, None, 2.5)
    assert len(samples.steps) == 0
    samples.page(3.0, 220, 5)
    assert len(samples.found) == 1


@pytest.mark.parametrize("sidecar", [True, False])
def test_the_speed_of_an_engine_without_a_sidecar_comes_from_its_page(sidecar: bool) -> None:
    pool = PoolState(PoolId("p"), Endpoints(), PrefixIndex(10), PredictedIndex(10, 1.0), LoadBook())
    member = Member(id=A, address="10.0.0.1:1", has_sidecar=sidecar, metrics_url="http://a/m")
    pool.replace([member], 0.0)
    usual = pool.ready(0.0)[0].speeds.decode_s_per_token
    report = LoadReport(waiting=0, running=4, kv_usage=0.1, total_blocks=100)
    for second in range(8):
        totals = StepTotals(second * 100 * 0.04, second * 100)
        page = EngineMetrics(report=report, start_ms=1, steps=totals)
        pool.scraped(A, page, float(second))
    (one,) = pool.ready(8.0)
    speed = one.speeds.decode_s_per_token + 10 * one.speeds.decode_s_per_block
    assert (speed == pytest.approx(0.04)) is not sidecar
    assert (one.speeds.decode_s_per_token == usual) is sidecar
    pool.replace([], 9.0)
    assert len(pool._steps) == 0
