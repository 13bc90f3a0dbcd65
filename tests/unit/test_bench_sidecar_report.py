"""What `epp bench sidecar` says of its numbers."""

import json
import math
import platform
import sys
from pathlib import Path
from statistics import median

import pytest

from epp.sim.benches.measure import Moment, event_us, interpreter
from epp.sim.benches.sidecar_report import Claim, Report, Way, as_json, as_text, by


def way(name: str, plain: float, event: float, split: float | None = None) -> Way:
    splits = [] if split is None else [split, split]
    return Way(
        name, 1, 1, plain_us=[plain, plain], event_us=[event], split_us=splits, gaps_s=[0.02]
    )


def good() -> list[Way]:
    toy = Way("toy", 1, 1, only_splits=True, split_us=[500, 700])
    return [way("direct", 1, 1), way("own", 100, 10, 300), way("aiohttp", 400, 40, 900), toy]


def test_claims_hold_when_every_number_is_within_its_bound() -> None:
    report = Report.of([*good(), way("nginx", 40, 8)], streams=2)
    assert report.holds
    assert report.claims()["plain request / nginx"] == Claim([2.5, 2.5], 3.0)
    assert report.claims()["split request / cheapest peer"].found == median([300 / 500, 300 / 700])
    assert "DOES NOT HOLD" not in as_text(report)


def test_without_nginx_no_claim_about_it_holds_and_its_numbers_are_null() -> None:
    report = Report.of(good(), streams=2)
    assert not report.holds
    found = json.loads(as_json(report))
    assert found["claims"]["event / nginx"]["found"] is None
    assert found["ways"]["direct"]["split_us"] is None


def test_the_figures_name_the_python_that_they_hang_on() -> None:
    report = Report.of(good(), streams=2)
    assert interpreter() in as_text(report)
    assert json.loads(as_json(report))["python"] == interpreter()
    assert platform.python_version() in interpreter()
    assert interpreter().endswith(str(Path(sys.executable).resolve()))


def test_a_request_without_an_answer_takes_the_claims_down() -> None:
    ways = [*good(), way("nginx", 40, 8)]
    ways[1].failed = 1
    assert not Report.of(ways, streams=2).holds


def test_a_ratio_is_of_what_was_measured_in_the_same_round_and_its_spread_is_told() -> None:
    assert by([30.0, 60.0, 40.0], [10.0, 30.0, 10.0]) == [3.0, 2.0, 4.0]
    ways = [*good(), Way("nginx", 1, 1, plain_us=[50, 25], event_us=[8])]
    report = Report.of(ways, streams=2)
    assert "plain request / nginx: 3.00 (2.00 to 4.00), at most 3.00: holds" in as_text(report)
    claims = json.loads(as_json(report))["claims"]
    assert claims["plain request / nginx"]["rounds"] == [2.0, 4.0]


def test_an_event_costs_what_was_spent_between_two_moments_without_what_idles() -> None:
    before, after = Moment(10.0, 1.0, 100), Moment(20.0, 3.0, 100_100)
    assert event_us(before, after, idle_share=0.0) == pytest.approx(20.0)
    assert event_us(before, after, idle_share=0.1) == pytest.approx(10.0)
    assert math.isnan(event_us(before, before, idle_share=0.0))


@pytest.mark.parametrize("nginx", [[50.0], [50.0, 0.0], [50.0, math.nan]])
def test_no_claim_holds_of_which_a_round_is_missing(nginx: list[float]) -> None:
    report = Report.of([*good(), Way("nginx", 1, 1, plain_us=nginx, event_us=[8])], streams=2)
    assert not report.holds
    told = json.loads(as_json(report))
    assert told["claims"]["plain request / nginx"]["found"] is None
    assert told["claims"]["plain request / nginx"]["rounds"] == [2.0, None]
    assert told["ways"]["nginx"]["rounds"]["plain_us"][0] == 50.0
