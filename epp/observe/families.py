"""One metric: how it is declared, and how its numbers become Prometheus' own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from epp.framework import EndpointId

Sample = tuple[tuple[str, ...], float | None]
"""Values of the labels, and the number; None where it is not known."""


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    name: str
    """As exposed; counters end in `_total`."""
    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()

    def of(self, samples: Iterable[Sample]) -> Metric:
        """With its values; those that are not known are left out."""
        make = CounterMetricFamily if self.kind is Kind.COUNTER else GaugeMetricFamily
        metric = make(self.name, self.help, labels=self.labels)
        for labels, value in samples:
            if value is not None:
                metric.add_metric(labels, value)
        return metric


def tally(counts: Mapping[str, int]) -> list[Sample]:
    """A number for each word."""
    return [((word,), float(count)) for word, count in sorted(counts.items())]


def label(ident: EndpointId) -> str:
    """An endpoint as a label's value."""
    return f"{ident.name}:{ident.port}"
