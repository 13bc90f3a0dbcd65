"""What one handoff adds to the metrics. Pure."""

from collections.abc import Callable

from .metrics import HandoffMetrics
from .steps import (
    DecodeEnded,
    DecodeFailed,
    Event,
    Fault,
    Finished,
    PrefillAnswered,
    PrefillFailed,
    SendDecode,
    SendPrefill,
)


class Tally:
    """One request's."""

    __slots__ = (
        "_answered_at",
        "_clock",
        "_failed",
        "_for_nobody",
        "_metrics",
        "_pulling",
        "_sent_at",
    )

    def __init__(self, metrics: HandoffMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._failed: Fault | None = None  # how the leg failed that ended last, if it did
        self._answered_at: float | None = None  # when the prefill's answer came
        self._sent_at = 0.0  # when the decode leg was
        self._pulling = self._for_nobody = False

    def begins(self, leg: SendPrefill | SendDecode) -> None:
        """A leg is sent."""
        metrics, name = self._metrics, "prefill"
        if isinstance(leg, SendDecode):
            name = "decode"
            self._sent_at = self._clock()
            self._pulling = leg.transfer is not None and leg.transfer.leased
            if self._pulling and self._answered_at is not None:
                metrics.age.observe(max(self._sent_at - self._answered_at, 0.0))
        else:
            self._answered_at = None
        if self._failed is not None:
            metrics.retries.labels(name, self._failed.value).inc()

    def note(self, event: Event) -> None:
        """Something has happened."""
        legs = self._metrics.legs
        match event:
            case PrefillAnswered(_, transfer, answered_at):
                legs.of("prefill", "answered").inc()
                self._failed, self._answered_at = None, answered_at
                if transfer is not None and transfer.leased:
                    self._metrics.handed_off.inc()
            case DecodeEnded():
                legs.of("decode", "answered").inc()
            case PrefillFailed(_, fault):
                legs.of("prefill", fault.value).inc()
                self._failed = fault
            case DecodeFailed(_, fault):
                legs.of("decode", fault.value).inc()
                self._failed = None if fault is Fault.COLD else fault
            case _:
                pass

    def flows(self, first_at: float | None, *, to_nobody: bool) -> None:
        """The decode leg's answer is good; its first byte came then, if it has any."""
        metrics, way = self._metrics, "own"
        if self._pulling:
            way = "pulled"
            metrics.pulled.inc()
            self._for_nobody |= to_nobody
        if first_at is None:
            return
        metrics.decode_leg.of((way,)).observe(max(first_at - self._sent_at, 0.0))
        if self._pulling and self._answered_at is not None:
            metrics.gap.observe(max(first_at - self._answered_at, 0.0))

    def ends(self, finished: Finished | None) -> None:
        """The handoff is over; None: by a failure of our own."""
        metrics = self._metrics
        if finished is None:
            return
        metrics.handoffs.of(finished.ending.value, finished.path).inc()
        if finished.copies:
            metrics.copies.inc(finished.copies)
        for reason in finished.stranded:
            metrics.stranded.labels(reason).inc()
            if reason == "lease-over":
                metrics.expired.inc()
        if self._for_nobody:
            metrics.completed_after_disconnect.inc()
