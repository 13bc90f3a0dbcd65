"""Times and costs of answers whose bodies come through the picker.

Where they do not, nothing is measured here and there are no series: the sidecars measure then,
under the same names.
"""

from prometheus_client import CollectorRegistry

from epp.answers import AnswerMetrics, Meter
from epp.framework import Request

from .labels import LabelSets

MAX_SETS = 200
"""Combinations of labels; each takes about 100 kB in all of its histograms."""


class AnswerMeters:
    """Implements `epp.request.neighbours.Meters`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = AnswerMetrics(registry)
        self._labels = LabelSets(MAX_SETS)

    def __call__(self, request: Request, request_bytes: int, began: float) -> Meter:
        """A meter of one request, which runs from then on until its `end`."""
        return self._metrics.meter(self._labels.of(request), request_bytes, began)
