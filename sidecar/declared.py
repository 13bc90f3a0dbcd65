"""Metrics as they are declared, with all that their documentation needs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from epp.distribution import Counts, Distributions

PREFIX = "epp_sidecar_"


@dataclass(frozen=True, slots=True)
class Row:
    """One metric as it is exposed."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


@dataclass(slots=True)
class Declared:
    """Makes the metrics of one registry, all with `PREFIX`, and remembers them in order."""

    registry: CollectorRegistry
    rows: list[Row] = field(default_factory=list)

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        self.rows.append(Row(f"{PREFIX}{name}_total", "counter", labels, text))
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        self.rows.append(Row(PREFIX + name, "gauge", labels, text))
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        self.rows.append(Row(PREFIX + name, "histogram", labels, text))
        return Histogram(PREFIX + name, text, labels, buckets=buckets, registry=self.registry)

    def distributions(
        self, name: str, text: str, buckets: Sequence[float], *labels: str
    ) -> Distributions:
        """The same for what every request is measured with."""
        self.rows.append(Row(PREFIX + name, "histogram", labels, text))
        return Distributions(PREFIX + name, text, labels, bounds=buckets, registry=self.registry)

    def counts(self, name: str, text: str, *labels: str) -> Counts:
        """The same for what every request counts."""
        self.rows.append(Row(f"{PREFIX}{name}_total", "counter", labels, text))
        return Counts(PREFIX + name, text, labels, registry=self.registry)
