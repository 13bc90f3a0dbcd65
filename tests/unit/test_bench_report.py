"""The tables of a benchmark and the claims in them."""

import dataclasses
import json
import math

import pytest

from epp.sim.benches.measure import Spread
from epp.sim.benches.report import Report, as_json, as_text

WAYS = ("direct", "sidecar", "envoy", "no-op", "full")


def spread(p50: float, p99: float) -> Spread:
    return Spread(100, p50, (p50 + p99) / 2, p99)


def report(*, first_byte: float = 14.0, between: float = 19.0, failed: int = 0) -> Report:
    """Direct costs 10 ms and 30 ms at the 99th percentile; `full` that much more."""
    first = {way: spread(10, 12) for way in WAYS} | {"full": spread(10 + first_byte, 40)}
    tokens = {way: spread(20, 30) for way in WAYS} | {"full": spread(21, 30 + between)}
    cpu = {"picker": 1500.0, "no-op picker": 1000.0, "sidecar": 700.0}
    return Report(
        requests=100,
        streams=50,
        first_byte_ms=first,
        between_ms=tokens,
        cpu_us=cpu,
        failed=failed,
    )


@pytest.mark.parametrize(
    ("first_byte", "between", "failed", "holds"),
    [
        (15.0, 20.0, 0, True),
        (15.1, 20.0, 0, False),
        (15.0, 20.1, 0, False),
        (1.0, 1.0, 1, False),
        (math.nan, 1.0, 0, False),
    ],
)
def test_the_claims_hold_up_to_their_limits(
    first_byte: float, between: float, failed: int, *, holds: bool
) -> None:
    assert report(first_byte=first_byte, between=between, failed=failed).holds is holds


def test_machines_read_the_same_numbers() -> None:
    read = json.loads(as_json(report()))
    assert read["claims"]["first_byte_added_p50_ms"] == 14.0
    assert read["claims"]["between_added_p99_ms"] == 19.0
    assert read["claims"]["hold"] is True
    assert set(read["first_byte_ms"]) == set(WAYS)
    assert read["first_byte_ms"]["full"] == dataclasses.asdict(spread(24, 40))
    assert read["cpu_us_per_request"]["picker"] == 1500.0


def test_people_see_differences_ratios_and_verdicts() -> None:
    text = as_text(report())
    full = next(line for line in text.splitlines() if line.strip().startswith("full"))
    assert full.split() == ["full", "24.00", "32.00", "+14.00", "+21.00", "2.40", "2.40"]
    assert "1.5x" in text
    assert "+14.0 ms over direct, claim +15 ms: holds" in text
    assert "DOES NOT HOLD" in as_text(report(first_byte=16))
    assert "3 requests FAILED" in as_text(report(failed=3))
