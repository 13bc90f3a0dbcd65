"""Histograms, counters and gauges for what changes with every answer, or with every piece of one.

prometheus_client's take a lock or two and a walk over labels for each value, a few microseconds;
these belong to one thread and take a bisection or an addition. They look the same on the metrics
page.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.utils import floatToGoString


class Distribution:
    """The values of one set of labels."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values of each bucket alone; the last has no bound."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Distributions:
    """One histogram with all its label sets, of one thread. A `Collector` of the registry."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        *,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = tuple(bounds)
        self._edges = [*map(floatToGoString, bounds), "+Inf"]
        self._by_labels: dict[tuple[str, ...], Distribution] = {}
        registry.register(self)

    def of(self, labels: tuple[str, ...]) -> Distribution:
        """The values of these labels; whoever chooses them keeps them few."""
        found = self._by_labels.get(labels)
        if found is None:
            found = self._by_labels[labels] = Distribution(self._bounds)
        return found

    def describe(self) -> Iterable[HistogramMetricFamily]:
        """What is registered, before there are values."""
        return [HistogramMetricFamily(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """What the page shows. Labels without a value are not shown: some are made in advance."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, values in list(self._by_labels.items()):
            if labels and not any(values.counts):
                continue
            buckets, seen = [], 0
            for edge, count in zip(self._edges, values.counts, strict=True):
                seen += count
                buckets.append((edge, float(seen)))
            family.add_metric(labels, buckets, values.total)
        return [family]


class Count:
    """The value of one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self) -> None:
        self.value += 1


class Counts:
    """One counter with all its label sets, of one thread. A `Collector` of the registry."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], *, registry: CollectorRegistry
    ) -> None:
        """`name` is without `_total`."""
        self._name, self._text, self._labels = name, text, labels
        self._by_labels: dict[tuple[str, ...], Count] = {}
        registry.register(self)

    def of(self, *labels: str) -> Count:
        """The value of these labels; whoever chooses them keeps them few."""
        found = self._by_labels.get(labels)
        if found is None:
            found = self._by_labels[labels] = Count()
        return found

    def describe(self) -> Iterable[CounterMetricFamily]:
        """What is registered, before there are values."""
        return [CounterMetricFamily(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[CounterMetricFamily]:
        """What the page shows."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in list(self._by_labels.items()):
            family.add_metric(labels, float(count.value))
        return [family]


class Level:
    """The value of one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Levels:
    """One gauge with all its label sets, of one thread. A `Collector` of the registry."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], *, registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._by_labels: dict[tuple[str, ...], Level] = {}
        registry.register(self)

    def of(self, labels: tuple[str, ...]) -> Level:
        """The value of these labels; whoever chooses them keeps them few."""
        found = self._by_labels.get(labels)
        if found is None:
            found = self._by_labels[labels] = Level()
        return found

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """What is registered, before there are values."""
        return [GaugeMetricFamily(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """What the page shows."""
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for labels, level in list(self._by_labels.items()):
            family.add_metric(labels, float(level.value))
        return [family]
