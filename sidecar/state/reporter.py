"""Turns what the relay and the engine watch say into records to publish, and into metrics."""

from collections.abc import Callable

import structlog
from prometheus_client import Counter

from epp.state.engine_blocks import Delta
from epp.state.entries import Entries, EntriesError
from epp.state.events import Frame
from epp.state.records import Done, EngineStatus, FirstToken
from epp.state.records import Outcome as Reported
from epp.state.sequence import Replay
from sidecar.engine import EngineWatch
from sidecar.metrics import Metrics
from sidecar.proxy import Ended, Outcome

from .cache import CacheMirror
from .outbox import Outbox
from .publisher import Kept

log = structlog.get_logger(__name__)

_REPORTED = {
    Outcome.OK: Reported.OK,
    Outcome.ENGINE_ERROR: Reported.ENGINE_ERROR,
    Outcome.ENGINE_GONE: Reported.ENGINE_GONE,
    Outcome.CLIENT_GONE: Reported.CLIENT_GONE,
}


class Reporter:
    """The relay's `Journal` and the engine watch's `Watcher`. `attach` before anything is told.

    `wake` is called whenever there is something to publish.
    """

    def __init__(
        self,
        metrics: Metrics,
        mirror: Callable[[Callable[[Delta], None]], CacheMirror] = CacheMirror,
    ) -> None:
        """`mirror` makes the engine's mirror, given who hears of changes."""
        self._metrics = metrics
        self._ended: dict[Outcome, Counter] = {}
        self._engine: EngineWatch | None = None
        self._wake: Callable[[], None] = lambda: None
        self.draining = False
        self.mirror = mirror(self._blocks_changed)
        self.outbox = Outbox()

    def attach(self, engine: EngineWatch, wake: Callable[[], None]) -> None:
        """Say whose engine this is, and whom to wake."""
        self._engine = engine
        self._wake = wake

    def drain(self) -> None:
        """The sidecar is about to end: not ready from here on."""
        self.draining = True
        self._wake()

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

    def start_ms(self) -> int:
        """The engine's present life; 0 while it has not been seen."""
        return 0 if self._engine is None else self._engine.life.start_ms

    def kept(self) -> Kept:
        """All that a snapshot says of the engine's cache."""
        freeze, blocks = self.mirror.freeze(), self.mirror.blocks
        return Kept(
            present=self.mirror.present(),
            tiers=self.mirror.tiers_present(),
            pack=lambda: freeze().pack(),
            blocks=0 if blocks is None else len(blocks),
        )

    def resume(self, memory: bytes) -> None:
        """Go on from what a writer before us knew of the engine's present life."""
        try:
            entries = Entries.unpack(memory)
        except EntriesError as error:
            log.warning("what an earlier sidecar knew cannot be read", reason=str(error))
            return
        resumed = self.mirror.resume(entries, entries.engine_seq)
        log.info("going on from an earlier sidecar's state", blocks=len(entries), taken=resumed)

    # What the engine's KV events say

    @property
    def wanted(self) -> Replay | None:
        """The replay that should be fetched at present."""
        return self.mirror.wanted

    def look(self) -> None:
        """Ask again for KV events that could not be had before."""
        self.mirror.look()

    def frame(self, frame: Frame) -> None:
        """One message of the engine's KV events."""
        self._mirrored(lambda: self.mirror.on(frame))

    def replayed(self, frame: Frame) -> None:
        """One message of the replay that is wanted."""
        self._mirrored(lambda: self.mirror.replayed(frame))

    def replay_ended(self, *, complete: bool) -> None:
        """The replay that was wanted is over, or broke off."""
        self._mirrored(lambda: self.mirror.replay_ended(complete=complete))

    def _mirrored(self, take: Callable[[], bool]) -> None:
        seen = self.mirror.sees_events
        if take() and self._engine is not None:
            self._engine.life.lost()
        if self.mirror.sees_events is not seen:
            self._wake()

    def _blocks_changed(self, delta: Delta) -> None:
        self.outbox.blocks(delta)
        self._wake()

    # What the engine watch sees (Watcher)

    def engine_changed(self) -> None:
        self._wake()

    def engine_page(self, *, is_new_life: bool) -> None:
        if not is_new_life:
            self.mirror.same_life()
            return
        self._metrics.engine_lives.inc()
        self.mirror.new_life()
        self._wake()

    def engine_model(self, model: str) -> None:
        self.mirror.serve(model)

    def probe_failed(self, probe: str) -> None:
        self._metrics.probe_failures.labels(probe).inc()

    # What passes through the relay (Journal)

    def first_token(self, decision_id: str, ttft_s: float) -> None:
        self.outbox.first_token(FirstToken(decision_id, ttft_s))
        self._wake()

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
        self._wake()

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
            counter = self._ended[ended.outcome] = metrics.requests.labels(ended.outcome.value)
        counter.inc()
        if usage.cached_tokens is not None and ended.predicted_cached_tokens:
            metrics.predicted_cached_tokens.inc(ended.predicted_cached_tokens)
        if ended.outcome is Outcome.OK and ended.usage_unknown is not None:
            metrics.usage_unknown.labels(ended.usage_unknown.value).inc()
