"""Numbers out of a run: quantiles, the CPU that a process has used, and what ran it."""

import itertools
import math
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar.built import is_compiled


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed.

    NaN without values.
    """
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles of one variant, in milliseconds."""

    count: int
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread":
        values = [1000 * quantile(seconds, share) for share in (0.5, 0.9, 0.99)]
        return cls(len(seconds), *values)


def intervals(arrivals: Sequence[float]) -> list[float]:
    """Seconds between neighbours."""
    return [later - earlier for earlier, later in itertools.pairwise(arrivals)]


@dataclass(frozen=True, slots=True)
class Moment:
    """What a process and a load have come to at one moment."""

    at_s: float
    cpu_s: float
    events: int


def event_us(before: Moment, after: Moment, idle_share: float) -> float:
    """CPU microseconds of an event between two moments, without the share of the time that the
    process uses while nobody asks. NaN where no event came."""
    events = after.events - before.events
    if events <= 0:
        return math.nan
    spent = after.cpu_s - before.cpu_s - idle_share * (after.at_s - before.at_s)
    return 1e6 * max(0.0, spent) / events


def interpreter() -> str:
    """The Python that runs this, for figures hang on its version and on who built it; and whether
    it runs a compiled sidecar."""
    where = Path(sys.executable).resolve()
    named = f"{platform.python_implementation()} {platform.python_version()} at {where}"
    return f"{named}, the sidecar compiled" if is_compiled() else named


def cpu_s(pid: int, proc: Path = Path("/proc")) -> float:
    """CPU seconds that all threads of a process have used, user and system; 0 when it is gone.

    Exact where the kernel counts nanoseconds of running threads, else in ticks of 10 ms.
    """
    try:
        threads = sorted((proc / str(pid) / "task").glob("*/schedstat"))
        spent = [int(one.read_text(encoding="utf-8").split()[0]) for one in threads]
    except (OSError, ValueError, IndexError):
        spent = []
    if any(spent):
        return sum(spent) / 1e9
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    after_name = stat.rpartition(")")[2].split()  # the name may hold blanks and brackets
    ticks = int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK")
