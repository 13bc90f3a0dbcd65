"""What is known about one exchange while it lasts."""

from dataclasses import replace
from functools import lru_cache

from epp.answers import AnswerMetrics, Meter
from epp.bodies.usage import ResponseWatch, Unknown, Usage
from epp.protocol import DECISION_ID, PREDICTED_CACHED_TOKENS
from sidecar.proxy import Ended, Outcome

from . import headers
from .incoming import Incoming
from .recounting import Count

_DECISION_ID, _PREDICTED = DECISION_ID.encode(), PREDICTED_CACHED_TOKENS.encode()


def _text(value: bytes) -> str:
    return value.decode("latin-1")


@lru_cache(maxsize=256)
def is_stream(content_type: str) -> bool:
    """Whether a body of this kind is server-sent events."""
    return content_type.partition(";")[0].strip().lower() == "text/event-stream"


class Exchange:
    """Collects what `Ended` reports. Until something else is known, the client has left."""

    __slots__ = (
        "_began",
        "_first_at",
        "_watch",
        "decision_id",
        "hides_usage",
        "meter",
        "outcome",
        "predicted",
        "recount",
        "status",
    )

    def __init__(self, request: Incoming, now: float) -> None:
        self._began = now
        self._first_at: float | None = None
        self.meter: Meter | None = None
        """Measures it, if it counts as a request."""
        self._watch: ResponseWatch | None = None
        decision, predicted = request.first(_DECISION_ID), request.first(_PREDICTED)
        self.decision_id = None if decision is None else headers.decision_id(_text(decision))
        self.predicted = None if predicted is None else headers.count(_text(predicted))
        self.outcome = Outcome.CLIENT_GONE
        self.status = 0
        self.hides_usage = False
        """The engine was asked for the usage of a stream whose client did not ask for it."""
        self.recount: Count | None = None
        """Tells how much of the prompt was cached where another engine computed it."""

    def measured(self, metrics: AnswerMetrics, labels: tuple[str, ...], size: int) -> None:
        """It counts as a request of this many bytes from here on."""
        self.meter = metrics.meter(labels, size, self._began)

    def answered(self, status: int, content_type: str, content_encoding: str) -> None:
        """The engine's headers are here."""
        self.status = status
        self._watch = ResponseWatch(content_type, content_encoding)
        if self.meter is not None and status < 400 and is_stream(content_type):
            self.meter.streams()

    def piece(self, data: bytes, now: float) -> float | None:
        """The next bytes of the body; returns the time to first byte when these are the first."""
        assert self._watch is not None
        self._watch.feed(data)
        if self.meter is not None:
            self.meter.piece(len(data), now)
        if self._first_at is not None:
            return None
        self._first_at = now
        return now - self._began

    @property
    def rests(self) -> bool:
        """Whether pieces may go by which say nothing of usage."""
        return self._watch is not None and self._watch.rests

    def completed(self) -> None:
        """The whole answer has been handed to the client's connection."""
        self.outcome = Outcome.OK if self.status < 400 else Outcome.ENGINE_ERROR

    def ended(self, now: float) -> Ended:
        """The exchange is over."""
        usage = self._watch.finish() if self._watch else Usage()
        if self.meter is not None:
            self.meter.end(now, self._recounted(usage), good=self.outcome is Outcome.OK)
        return Ended(
            decision_id=self.decision_id,
            outcome=self.outcome,
            status=self.status,
            usage=usage,
            usage_unknown=self._watch.unknown if self._watch else Unknown.ABSENT,
            predicted_cached_tokens=self.predicted,
            ttft_s=None if self._first_at is None else self._first_at - self._began,
            duration_s=now - self._began,
        )

    def _recounted(self, usage: Usage) -> Usage:
        """What the client is told. Reports to the picker hold the engine's own count: they are
        compared with what was expected of that engine."""
        cached = None if self.recount is None or usage.cached_tokens is None else self.recount()
        return usage if cached is None else replace(usage, cached_tokens=cached)
