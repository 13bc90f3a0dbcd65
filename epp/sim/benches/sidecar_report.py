"""What `epp bench sidecar` found, for people and for machines."""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from .measure import interpreter, quantile

ADDED_CLAIM_MS = 2.0
"""Most that our relay may add to the time between two events (99th percentile)."""
PLAIN_CLAIM, EVENT_CLAIM, SPLIT_CLAIM = 3.0, 1.5, 8.0
"""Most that a plain request, an event, and a request that is split may cost in nginx's own costs:
the first and the last of its plain request."""
REFERENCE_CLAIM = 3.0
"""How many times less CPU than the reference our relay takes at least."""


PEERS = ("toy", "vllm-router")
"""Ways that split requests and are not ours."""


@dataclass(slots=True)
class Way:
    """One way to the engine, and what was measured of it."""

    name: str
    port: int
    pid: int
    splits: bool = False
    """Whether it hands prompts over."""
    only_splits: bool = False
    """Whether it does nothing else."""
    idle_share: float = 0.0
    """CPU while nobody asks, in seconds a second."""
    plain_us: list[float] = field(default_factory=list[float])
    """CPU of a plain request, one number a round."""
    event_us: list[float] = field(default_factory=list[float])
    split_us: list[float] = field(default_factory=list[float])
    gaps_s: list[float] = field(default_factory=list[float])
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One way in numbers: CPU in microseconds, one number a round; none for what it does not do."""

    name: str
    plain_us: Sequence[float]
    event_us: Sequence[float]
    split_us: Sequence[float]
    gap_p99_ms: float
    failed: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio that was found in each round, or one number, and what it may be at most."""

    rounds: Sequence[float]
    limit: float

    @property
    def found(self) -> float:
        """The median of the rounds; NaN where a way or a round is missing."""
        return math.nan if any(map(math.isnan, self.rounds)) else _median(self.rounds)

    @property
    def holds(self) -> bool:
        return self.found <= self.limit


def by(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    """Ratios round by round: what was measured one after the other is compared, for a machine that
    others use is now fast and now slow. Of a round that one of them lacks it is NaN, and there is
    none of a way that was not measured at all."""
    if not (ours and others):
        return []
    pairs = zip_longest(ours, others, fillvalue=math.nan)
    return [one / other if other else math.nan for one, other in pairs]


@dataclass(frozen=True, slots=True)
class Report:
    rows: dict[str, Row]
    streams: int

    @classmethod
    def of(cls, ways: Sequence[Way], *, streams: int) -> "Report":
        rows = {
            way.name: Row(
                way.name,
                way.plain_us,
                way.event_us,
                way.split_us,
                1000 * quantile(way.gaps_s, 0.99),
                way.failed,
            )
            for way in ways
        }
        return cls(rows, streams)

    def claims(self) -> dict[str, Claim]:
        """What was found, by claim."""
        own, other = self.rows["own"], self.rows["aiohttp"]
        nginx = self.rows.get("nginx", Row("nginx", (), (), (), math.nan, 0))
        added = own.gap_p99_ms - self.rows["direct"].gap_p99_ms
        peers = [self.rows[name].split_us for name in PEERS if name in self.rows]
        cheapest = min(peers, key=_median, default=())
        return {
            "split request / cheapest peer": Claim(by(own.split_us, cheapest), 1.0),
            "plain request / nginx": Claim(by(own.plain_us, nginx.plain_us), PLAIN_CLAIM),
            "event / nginx": Claim(by(own.event_us, nginx.event_us), EVENT_CLAIM),
            "split request / nginx plain": Claim(by(own.split_us, nginx.plain_us), SPLIT_CLAIM),
            "plain request / reference": Claim(
                by(own.plain_us, other.plain_us), 1 / REFERENCE_CLAIM
            ),
            "p99 between events added, ms": Claim([added], ADDED_CLAIM_MS),
        }

    @property
    def holds(self) -> bool:
        """Whether all claims hold. False when a number is missing."""
        failed = any(row.failed for row in self.rows.values())
        return not failed and all(claim.holds for claim in self.claims().values())


def as_json(report: Report) -> str:
    """Numbers that are missing are null."""
    return json.dumps(
        {
            "python": interpreter(),
            "streams": report.streams,
            "ways": {
                row.name: {
                    "plain_us": _number(_median(row.plain_us)),
                    "event_us": _number(_median(row.event_us)),
                    "split_us": _number(_median(row.split_us)),
                    "rounds": {
                        "plain_us": [_number(one) for one in row.plain_us],
                        "event_us": [_number(one) for one in row.event_us],
                        "split_us": [_number(one) for one in row.split_us],
                    },
                    "gap_p99_ms": _number(row.gap_p99_ms),
                    "failed": row.failed,
                }
                for row in report.rows.values()
            },
            "claims": {
                name: {
                    "found": _number(claim.found),
                    "rounds": [_number(one) for one in claim.rounds],
                    "limit": round(claim.limit, 3),
                }
                for name, claim in report.claims().items()
            },
            "hold": report.holds,
        }
    )


def as_text(report: Report) -> str:
    text = io.StringIO()
    console = Console(file=text, width=114, highlight=False, color_system=None)
    table = Table("way", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("plain, us", "event, us", "split, us", "p99 between, ms", "failed"):
        table.add_column(column, justify="right")
    for row in report.rows.values():
        spent = (_spread(rounds, 1) for rounds in (row.plain_us, row.event_us, row.split_us))
        table.add_row(row.name, *spent, _text(row.gap_p99_ms), str(row.failed))
    console.print(f"\nCPU of the process in front of the engine, {report.streams} streams at once")
    console.print(f"Python: {interpreter()}")
    console.print(table)
    for name, claim in report.claims().items():
        verdict = "holds" if claim.holds else "DOES NOT HOLD"
        console.print(f"{name}: {_spread(claim.rounds)}, at most {claim.limit:.2f}: {verdict}")
    return text.getvalue()


def _median(values: Sequence[float]) -> float:
    return median(values) if values else math.nan


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)


def _spread(rounds: Sequence[float], digits: int = 2) -> str:
    """The median, and between what the rounds lay."""
    if len(rounds) < 2:
        return _text(_median(rounds))
    middle, least, most = _median(rounds), min(rounds), max(rounds)
    return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def _text(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
