"""The tables of a benchmark, for people and for machines."""

import dataclasses
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from .measure import Spread

FIRST_BYTE_CLAIM_MS = 15.0
"""Most that the full way may add to the time to first byte (median, one request at a time)."""
BETWEEN_CLAIM_MS = 20.0
"""Most that it may add to the time between two tokens (99th percentile)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one run measured; ways by name, `direct` and `full` among them."""

    requests: int
    streams: int
    first_byte_ms: Mapping[str, Spread]
    between_ms: Mapping[str, Spread]
    cpu_us: Mapping[str, float]
    failed: int
    """Requests without a whole answer; they are in no other number."""

    @property
    def first_byte_added_ms(self) -> float:
        return self.first_byte_ms["full"].p50 - self.first_byte_ms["direct"].p50

    @property
    def between_added_ms(self) -> float:
        return self.between_ms["full"].p99 - self.between_ms["direct"].p99

    @property
    def holds(self) -> bool:
        """Whether both claims hold. False when a number is missing."""
        return (
            self.failed == 0
            and self.first_byte_added_ms <= FIRST_BYTE_CLAIM_MS
            and self.between_added_ms <= BETWEEN_CLAIM_MS
        )


def as_json(report: Report) -> str:
    """Milliseconds, except `cpu_us`."""
    return json.dumps(
        {
            "requests": report.requests,
            "streams": report.streams,
            "failed": report.failed,
            "first_byte_ms": _plain(report.first_byte_ms),
            "between_ms": _plain(report.between_ms),
            "cpu_us_per_request": {name: round(us, 1) for name, us in report.cpu_us.items()},
            "claims": {
                "first_byte_added_p50_ms": round(report.first_byte_added_ms, 3),
                "first_byte_added_p50_limit_ms": FIRST_BYTE_CLAIM_MS,
                "between_added_p99_ms": round(report.between_added_ms, 3),
                "between_added_p99_limit_ms": BETWEEN_CLAIM_MS,
                "hold": report.holds,
            },
        }
    )


def _plain(spreads: Mapping[str, Spread]) -> dict[str, dict[str, float]]:
    return {
        name: {key: round(value, 3) for key, value in dataclasses.asdict(spread).items()}
        for name, spread in spreads.items()
    }


def as_text(report: Report) -> str:
    """Tables as wide as they need to be."""
    text = io.StringIO()
    console = Console(file=text, width=100, highlight=False, color_system=None)
    console.print(f"\nTime to first byte, {report.requests} requests one at a time, ms")
    console.print(_spreads(report.first_byte_ms, ("p50", "p90")))
    console.print(f"Time between two tokens, {report.streams} streams at once, ms")
    console.print(_spreads(report.between_ms, ("p50", "p99")))
    console.print("CPU of one request, microseconds")
    table = _table("process", "us", "over the no-op picker")
    floor = report.cpu_us["no-op picker"]
    for name, us in report.cpu_us.items():
        ratio = f"{us / floor:.1f}x" if name == "picker" and floor else ""
        table.add_row(name, f"{us:.0f}", ratio)
    console.print(table)
    for claim, added, limit in (
        ("median time to first byte", report.first_byte_added_ms, FIRST_BYTE_CLAIM_MS),
        ("99th percentile between two tokens", report.between_added_ms, BETWEEN_CLAIM_MS),
    ):
        verdict = "holds" if added <= limit else "DOES NOT HOLD"
        console.print(f"{claim}: {added:+.1f} ms over direct, claim {limit:+.0f} ms: {verdict}")
    if report.failed:
        console.print(f"{report.failed} requests FAILED: the numbers above are not to be used")
    return text.getvalue()


def _spreads(spreads: Mapping[str, Spread], shown: tuple[str, str]) -> Table:
    added = [f"{name} over direct" for name in shown]
    ratios = [f"{shown[0]} / {name}" for name in ("direct", "no-op")]
    table = _table("way", *shown, *added, *ratios)
    for name, spread in spreads.items():
        values = [getattr(spread, key) for key in shown]
        base = [getattr(spreads["direct"], key) for key in shown]
        table.add_row(
            name,
            *(f"{value:.2f}" for value in values),
            *(f"{value - less:+.2f}" for value, less in zip(values, base, strict=True)),
            *(_ratio(values[0], getattr(spreads[peer], shown[0])) for peer in ("direct", "no-op")),
        )
    return table


def _ratio(value: float, peer: float) -> str:
    return f"{value / peer:.2f}" if peer else ""


def _table(first: str, *columns: str) -> Table:
    table = Table(first, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table
