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

from epp.errors import EppError
from epp.framework import Lora

from .reports import LoadReport

MAX_PAGE_BYTES = 8 << 20
MAX_SERIES = 1024
"""Series of one family that are read: more engines than any endpoint has."""


class PageError(EppError):
    """A page that is larger than allowed."""

    reason = "metrics-page"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """Where one kind of engine says what. The first name that is on the page counts (B04)."""

    waiting: tuple[str, ...] = ("vllm:num_requests_waiting",)
    running: tuple[str, ...] = ("vllm:num_requests_running",)
    kv_usage: tuple[str, ...] = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    cache_info: tuple[str, ...] = ("vllm:cache_config_info",)
    """A constant gauge with the two labels below."""
    block_tokens_label: str = "block_size"
    total_blocks_label: str = "num_gpu_blocks"
    lora: tuple[str, ...] = ("vllm:lora_requests_info",)
    """A gauge whose value is Unix time, with the three labels below; the first two are lists."""
    lora_running_label: str = "running_lora_adapters"
    lora_waiting_label: str = "waiting_lora_adapters"
    lora_most_label: str = "max_lora"
    model_label: str = "model_name"
    """Of `waiting`: the model that the adapters change."""
    start: tuple[str, ...] = ("process_start_time_seconds",)


VLLM = MetricNames()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """What one page says."""

    report: LoadReport = field(default_factory=LoadReport)
    start_ms: int | None = None
    """Start of the engine's process in milliseconds of Unix time."""


def parse_page(
    text: bytes, max_bytes: int = MAX_PAGE_BYTES, names: MetricNames = VLLM
) -> EngineMetrics:
    """Read one page in the Prometheus or OpenMetrics text format. Raises PageError if too long."""
    if len(text) > max_bytes:
        raise PageError(f"metrics page of {len(text)} bytes; {max_bytes} are allowed")
    found = _Page(text, names)
    usage = found.values(names.kv_usage)
    start = found.values(names.start)
    block_tokens, total_blocks = _blocks(found.labels(names.cache_info), names)
    return EngineMetrics(
        report=LoadReport(
            waiting=_total(found.values(names.waiting)),
            running=_total(found.values(names.running)),
            kv_usage=math.fsum(usage) / len(usage) if usage else None,
            total_blocks=total_blocks,
            block_tokens=block_tokens,
            lora=_lora(found, names),
        ),
        start_ms=round(max(start) * 1000) if start and max(start) < 2**40 else None,
    )


class _Page:
    """The series of the wanted families, by family name."""

    def __init__(self, text: bytes, names: MetricNames) -> None:
        self._series: dict[str, list[tuple[bytes, bytes]]] = {}
        self._latest: tuple[float, bytes] | None = None
        lora = {name.encode() for name in names.lora}
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
        if at is not None and (self._latest is None or at >= self._latest[0]):
            self._latest = at, labels

    @property
    def adapters(self) -> dict[str, str] | None:
        """Labels of the present LoRA series."""
        return None if self._latest is None else _labels(self._latest[1])

    def values(self, names: tuple[str, ...]) -> list[float]:
        """All values of the first family there; none if one of them is no usable number."""
        numbers = [_number(value) for _, value in self._first(names)]
        return [n for n in numbers if n is not None] if None not in numbers else []

    def labels(self, names: tuple[str, ...]) -> list[dict[str, str]]:
        return [_labels(labels) for labels, _ in self._first(names)]

    def _first(self, names: tuple[str, ...]) -> list[tuple[bytes, bytes]]:
        return next((self._series[name] for name in names if name in self._series), [])


_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\\n]|\\.)*)"')
_PATTERNS: dict[MetricNames, re.Pattern[bytes]] = {}


def _pattern(names: MetricNames) -> re.Pattern[bytes]:
    known = _PATTERNS.get(names)
    if known is None:
        wanted = (
            *names.waiting,
            *names.running,
            *names.kv_usage,
            *names.cache_info,
            *names.lora,
            *names.start,
        )
        either = b"|".join(re.escape(name).encode() for name in wanted)
        known = re.compile(rb"^(" + either + rb")(?:\{(.*)\})?[ \t]+(\S+)", re.MULTILINE)
        if len(_PATTERNS) < 16:
            _PATTERNS[names] = known
    return known


def _labels(text: bytes) -> dict[str, str]:
    return {key.decode(): value.decode(errors="replace") for key, value in _LABEL.findall(text)}


def _lora(page: _Page, names: MetricNames) -> Lora | None:
    labels = page.adapters
    if labels is None:
        return None
    models = {found.get(names.model_label, "") for found in page.labels(names.waiting)}
    return Lora(
        running=_listed(labels.get(names.lora_running_label, "")),
        waiting=_listed(labels.get(names.lora_waiting_label, "")),
        most=_integer(labels.get(names.lora_most_label)) or 0,
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


def _blocks(series: list[dict[str, str]], names: MetricNames) -> tuple[int | None, int | None]:
    """Block size, and blocks of all engines together; unequal sizes cannot be added up."""
    engines = {labels.get("engine", ""): labels for labels in series}
    sizes = {_integer(labels.get(names.block_tokens_label)) for labels in engines.values()}
    counts = [_integer(labels.get(names.total_blocks_label)) for labels in engines.values()]
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
