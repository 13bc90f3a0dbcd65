"""Read the few numbers that we need from an engine's metrics page. Pure, quick and bounded.

An absent family is not known and nothing else (fault B03). Several series of one family are
several engines, or models, behind one endpoint: queues and blocks add up, the share of KV cache in
use is their mean, so that share times blocks stays right for equal engines (fault B05). A series
that is NaN, infinite or negative makes its family unknown.

LoRA adapters are told in labels. A page keeps a series of every combination that there ever was;
the value is the time at which it held, so the largest is the present one.
"""

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache

from epp.errors import EppError
from epp.framework import Lora
from epp.framework.engines import VLLM, EngineNames, MetricSpec, Specs

from .reports import LoadReport

MAX_PAGE_BYTES = 8 << 20
MAX_SERIES = 1024
"""Series of one family that are read: more engines than any endpoint has."""

_OF_HISTOGRAM = ("_sum", "_count")
_START = (MetricSpec("process_start_time_seconds"),)
_LORA_RUNNING, _LORA_WAITING, _LORA_MOST = (
    "running_lora_adapters",
    "waiting_lora_adapters",
    "max_lora",
)
"""Labels of the LoRA gauge; the first two are lists."""
_MODEL = "model_name"
"""Label of the queue: the model that the adapters change."""


class PageError(EppError):
    """A page that is larger than allowed."""

    reason = "metrics-page"


@dataclass(frozen=True, slots=True)
class StepTotals:
    """All time between tokens of answers since the engine's start, and how often that was."""

    seconds: float
    count: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """What one page says."""

    report: LoadReport = field(default_factory=LoadReport)
    start_ms: int | None = None
    """Start of the engine's process in milliseconds of Unix time."""
    steps: StepTotals | None = None


def parse_page(
    text: bytes, max_bytes: int = MAX_PAGE_BYTES, names: EngineNames = VLLM
) -> EngineMetrics:
    """Read one page in the Prometheus or OpenMetrics text format. Raises PageError if too long."""
    if len(text) > max_bytes:
        raise PageError(f"metrics page of {len(text)} bytes; {max_bytes} are allowed")
    found = _Page(text, names)
    usage = found.values(names.kv_usage)
    start = found.values(_START)
    block_tokens, total_blocks = _blocks(found)
    return EngineMetrics(
        report=LoadReport(
            waiting=_total(found.values(names.waiting)),
            running=_total(found.values(names.running)),
            kv_usage=math.fsum(usage) / len(usage) if usage else None,
            total_blocks=total_blocks,
            block_tokens=block_tokens,
            lora=_lora(found),
        ),
        start_ms=round(max(start) * 1000) if start and max(start) < 2**40 else None,
        steps=_steps(found),
    )


_Series = tuple[bytes, bytes]
"""Labels and value, as they stand there."""


def _steps(page: "_Page") -> StepTotals | None:
    sums, counts = (page.values(_parts(page.names, suffix)) for suffix in _OF_HISTOGRAM)
    if not sums or len(sums) != len(counts):
        return None
    return StepTotals(math.fsum(sums), math.fsum(counts))


def _parts(names: EngineNames, suffix: str) -> Specs:
    return tuple(spec.part(suffix) for spec in names.steps)


class _Page:
    """The series of the wanted families, by family name."""

    def __init__(self, text: bytes, names: EngineNames) -> None:
        self.names = names
        self._series: dict[str, list[_Series]] = {}
        self._latest: tuple[float, bytes] | None = None
        lora = {spec.family.encode() for spec in names.lora}
        for match in _pattern(names).finditer(text):
            if match[1] in lora:
                self._keep_latest(match[2] or b"", match[3])
                continue
            series = self._series.setdefault(match[1].decode(), [])
            if len(series) < MAX_SERIES:
                series.append((match[2] or b"", match[3]))

    def _keep_latest(self, labels: bytes, value: bytes) -> None:
        """One of many thousand that a long-lived engine shows (its history, not its state)."""
        at = _number(value)
        if at is None or (self._latest is not None and at < self._latest[0]):
            return
        if any(_matches(spec, labels) for spec in self.names.lora):
            self._latest = at, labels

    @property
    def adapters(self) -> dict[str, str] | None:
        """Labels of the present LoRA series."""
        return None if self._latest is None else _labels(self._latest[1])

    def values(self, wanted: Specs) -> list[float]:
        """One of each engine, by the first spec there; none if one of them is no usable number."""
        series = self._first(wanted)
        numbers = [_number(value) for _, value in series]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            return []
        return known if not self.names.copies else self._without_copies(series, known)

    def labels(self, wanted: Specs) -> list[dict[str, str]]:
        return [_labels(labels) for labels, _ in self._first(wanted)]

    def _without_copies(self, series: list[_Series], numbers: list[float]) -> list[float]:
        """The largest of each engine's ranks, for one may have told it a moment earlier."""
        most: dict[frozenset[tuple[str, str]], float] = {}
        for (labels, _), number in zip(series, numbers, strict=True):
            pairs = _labels(labels).items()
            engine = frozenset(pair for pair in pairs if pair[0] not in self.names.copies)
            most[engine] = max(number, most.get(engine, 0.0))
        return list(most.values())

    def _first(self, wanted: Specs) -> list[_Series]:
        for spec in wanted:
            series = self._series.get(spec.family, [])
            matching = [one for one in series if _matches(spec, one[0])]
            if matching:
                return matching
        return []


def _matches(spec: MetricSpec, labels: bytes) -> bool:
    return not spec.labels or spec.matches(_labels(labels))


_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\\n]|\\.)*)"')


@lru_cache(maxsize=64)
def _pattern(names: EngineNames) -> re.Pattern[bytes]:
    wanted = (
        *names.waiting,
        *names.running,
        *names.kv_usage,
        *names.cache_info,
        *names.block_tokens,
        *names.total_blocks,
        *names.lora,
        *(part for suffix in _OF_HISTOGRAM for part in _parts(names, suffix)),
        *_START,
    )
    either = b"|".join(sorted({re.escape(spec.family).encode() for spec in wanted}))
    return re.compile(rb"^(" + either + rb")(?:\{(.*)\})?[ \t]+(\S+)", re.MULTILINE)


def _labels(text: bytes) -> dict[str, str]:
    return {key.decode(): value.decode(errors="replace") for key, value in _LABEL.findall(text)}


def _lora(page: _Page) -> Lora | None:
    labels = page.adapters
    if labels is None:
        return None
    models = {found.get(_MODEL, "") for found in page.labels(page.names.waiting)}
    return Lora(
        running=_listed(labels.get(_LORA_RUNNING, "")),
        waiting=_listed(labels.get(_LORA_WAITING, "")),
        most=_integer(labels.get(_LORA_MOST)) or 0,
        base=models.pop() if len(models) == 1 else "",
    )


def _listed(names: str) -> frozenset[str]:
    return frozenset(name.strip() for name in names.split(",") if name.strip())


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _total(values: list[float]) -> int | None:
    return round(math.fsum(values)) if values else None


def _blocks(page: _Page) -> tuple[int | None, int | None]:
    """Block size, and blocks of all engines together; unequal sizes cannot be added up."""
    names = page.names
    series = page.labels(names.cache_info)
    engines = {labels.get(names.engine_label, ""): labels for labels in series}
    sizes = {_integer(labels.get(names.block_tokens_label)) for labels in engines.values()}
    counts = [_integer(labels.get(names.total_blocks_label)) for labels in engines.values()]
    if not engines:
        sizes = {round(value) for value in page.values(names.block_tokens)}
        counts = [round(value) for value in page.values(names.total_blocks)]
    size = sizes.pop() if len(sizes) == 1 else None
    known = [count for count in counts if count is not None]
    total = sum(known) if known and len(known) == len(counts) and size is not None else None
    return size, total


def _integer(text: str | None) -> int | None:
    """A decimal number; "None" and the like are not known."""
    return (
        int(text)
        if text is not None and text.isascii() and text.isdigit() and len(text) < 11
        else None
    )
