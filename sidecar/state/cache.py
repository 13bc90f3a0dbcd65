"""What the engine's KV cache holds, as its events tell it. Pure.

The engine's own sequence decides whether events may be believed. On a gap, a damaged batch or a
restart everything is forgotten: a reader then knows less, but nothing wrong (fault C05).
"""

from collections.abc import Callable
from dataclasses import dataclass

from epp.state.engine_blocks import Delta, EngineBlocks
from epp.state.events import Continuity, DecodeError, Frame, SequenceCheck, decode


@dataclass(slots=True)
class EventCounts:
    """Only ever rise."""

    frames: int = 0
    gaps: int = 0
    restarts: int = 0
    duplicates: int = 0
    undecodable: int = 0
    """Batches that are no batch: handled like a gap, since removals may be lost."""
    skipped: int = 0
    """Events of a kind that we do not know."""


class CacheMirror:
    """Own blocks of one engine over all its lives; tells `changed` what each event changed."""

    def __init__(self, changed: Callable[[Delta], None]) -> None:
        self._changed = changed
        self._blocks: EngineBlocks | None = None
        self._sequence = SequenceCheck()
        self._of_next_life = False
        self.counts = EventCounts()

    @property
    def sees_events(self) -> bool:
        """Whether this life's events have been seen: until then nothing is known of its blocks."""
        return self._blocks is not None and self._sequence.last is not None

    @property
    def blocks(self) -> EngineBlocks | None:
        """The mirror itself, for its counters; None until the model's name is known."""
        return self._blocks

    def serve(self, model: str) -> None:
        """The engine's model is known (or another one than before): keys are seeded with it."""
        self._blocks = EngineBlocks(model)
        self._sequence.forget()
        self._changed(Delta(reset=True, stored=(), removed=()))

    def present(self) -> list[int]:
        """All own keys that are present."""
        return [] if self._blocks is None else self._blocks.present()

    def new_life(self) -> None:
        """The engine restarted. Events of the new life that came before the news are kept."""
        if self._of_next_life:
            self._of_next_life = False
            return
        self._sequence.forget()
        self._clear()

    def same_life(self) -> None:
        """The engine is still the same: a fallen sequence was not a sign of a restart."""
        self._of_next_life = False

    def on(self, frame: Frame) -> bool:
        """Take one message. Returns True when it shows that the engine has restarted."""
        if self._blocks is None:
            return False
        self.counts.frames += 1
        continuity = self._sequence.on(frame.seq)
        if continuity is Continuity.DUPLICATE:
            self.counts.duplicates += 1
            return False
        if continuity is Continuity.RESTART:
            self.counts.restarts += 1
            self._of_next_life = True
            self._clear()
        elif continuity is Continuity.GAP:
            self.counts.gaps += 1
            self._clear()
        self._apply(self._blocks, frame.payload)
        return continuity is Continuity.RESTART

    def _apply(self, blocks: EngineBlocks, payload: bytes) -> None:
        try:
            batch = decode(payload)
        except DecodeError:
            self.counts.undecodable += 1
            self._clear()
            return
        self.counts.skipped += batch.skipped
        self._tell(blocks.apply(batch.events))

    def _clear(self) -> None:
        if self._blocks is not None:
            self._tell(self._blocks.clear())

    def _tell(self, delta: Delta) -> None:
        if not delta.empty:
            self._changed(delta)
