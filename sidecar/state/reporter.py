"""Turns what the relay and the engine watch say into records to publish, and into metrics."""

from collections.abc import Callable

from epp.distribution import Count
from epp.state.engine_blocks import Delta
from epp.state.records import Done, EngineStatus, FirstToken
from epp.state.records import Outcome as Reported
from epp.state.writing.cache import CacheMirror
from epp.state.writing.chronicle import Chronicle
from sidecar.engine import EngineWatch
from sidecar.metrics import Metrics
from sidecar.proxy import Ended, Outcome

_REPORTED = {
    Outcome.OK: Reported.OK,
    Outcome.ENGINE_ERROR: Reported.ENGINE_ERROR,
    Outcome.ENGINE_GONE: Reported.ENGINE_GONE,
    Outcome.CLIENT_GONE: Reported.CLIENT_GONE,
}


class Reporter(Chronicle):
    """The relay's `Journal` and the engine watch's `Watcher`. `attach` before anything is told."""

    def __init__(
        self,
        metrics: Metrics,
        mirror: Callable[[Callable[[Delta], None]], CacheMirror] = CacheMirror,
    ) -> None:
        super().__init__(mirror)
        self._metrics = metrics
        self._ended: dict[Outcome, Count] = {}
        self._engine: EngineWatch | None = None
        self.draining = False

    def attach(self, engine: EngineWatch, wake: Callable[[], None]) -> None:
        """Say whose engine this is, and whom to wake."""
        self._engine, self.life = engine, engine.life
        self.wake = wake

    def drain(self) -> None:
        """The sidecar is about to end: not ready from here on."""
        self.draining = True
        self.wake()

    def not_ready(self) -> str | None:
        """Why requests should go elsewhere; None when they are welcome."""
        if self.draining:
            return "The sidecar is shutting down."
        engine = self._engine
        if engine is None or not engine.ready:
            lived = engine is not None and engine.life.start_ms
            return "The engine does not answer." if lived else "The engine is loading."
        return None

    def status(self) -> EngineStatus:
        """Load and readiness for the next record."""
        assert self._engine is not None
        return EngineStatus(
            report=self._engine.report,
            ready=self.not_ready() is None,
            events=self.mirror.sees_events,
            partial=self.mirror.partial,
        )

    # What the engine watch sees (Watcher)

    def engine_changed(self) -> None:
        self.wake()

    def engine_page(self, *, is_new_life: bool) -> None:
        if is_new_life:
            self._metrics.engine_lives.inc()
        super().engine_page(is_new_life=is_new_life)

    def probe_failed(self, probe: str) -> None:
        self._metrics.probe_failures.labels(probe).inc()

    # What passes through the relay (Journal)

    def first_token(self, decision_id: str, ttft_s: float) -> None:
        self.outbox.first_token(FirstToken(decision_id, ttft_s))
        self.wake()

    def ended(self, ended: Ended) -> None:
        self._count(ended)
        if ended.decision_id is None:
            return
        self.outbox.done(
            Done(
                decision_id=ended.decision_id,
                outcome=_REPORTED[ended.outcome],
                status=ended.status,
                prompt_tokens=ended.usage.prompt_tokens,
                cached_tokens=ended.usage.cached_tokens,
                completion_tokens=ended.usage.completion_tokens,
                ttft_s=ended.ttft_s,
                predicted_cached_tokens=ended.predicted_cached_tokens,
                duration_s=ended.duration_s,
            )
        )
        self.wake()

    def engine_refused(self) -> None:
        if self._engine is not None:
            self._engine.refused()

    def engine_suspect(self) -> None:
        if self._engine is not None:
            self._engine.suspect()

    def _count(self, ended: Ended) -> None:
        metrics, usage = self._metrics, ended.usage
        counter = self._ended.get(ended.outcome)
        if counter is None:
            counter = self._ended[ended.outcome] = metrics.requests.of(ended.outcome.value)
        counter.inc()
        if usage.cached_tokens is not None and ended.predicted_cached_tokens:
            metrics.predicted_cached_tokens.inc(ended.predicted_cached_tokens)
        if ended.outcome is Outcome.OK and ended.usage_unknown is not None:
            metrics.usage_unknown.labels(ended.usage_unknown.value).inc()
