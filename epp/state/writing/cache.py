"""What the engine's KV cache holds, as its events tell it. Pure.

The engine's own sequence decides whether events may be believed (`epp.state.sequencer`). Where it
breaks and no replay mends it, and after a damaged batch, everything is forgotten: a reader then
knows less, but nothing wrong (fault C05).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from epp.state.blocks import OWN_BLOCK_TOKENS, PLAIN, Naming
from epp.state.engine_blocks import Delta, EngineBlocks
from epp.state.entries import Entries
from epp.state.events import AllBlocksCleared, DecodeError, Frame, decode
from epp.state.sequence import Forget, Proven, Replay, SequenceCounts, Step
from epp.state.sequencer import Sequencer


@dataclass(slots=True)
class EventCounts:
    """Only ever rise."""

    frames: int = 0
    undecodable: int = 0
    """Batches that are no batch: handled like a gap, since removals may be lost."""
    skipped: int = 0
    """Events of a kind that we do not know."""
    other_ranks: int = 0
    """Batches of another data parallel rank than ours."""


class CacheMirror:
    """Own blocks of one engine over all its lives; tells `changed` what each event changed.

    With `replays` somebody must fetch what `wanted` says. The methods that take messages return
    True when they show that the engine has restarted.
    """

    def __init__(
        self,
        changed: Callable[[Delta], None],
        *,
        naming: Naming = PLAIN,
        replays: bool = False,
        rank: int | None = None,
        own_block_tokens: int = OWN_BLOCK_TOKENS,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`rank`: the data parallel rank whose cache this is; None takes the first that speaks."""
        self._changed = changed
        self._naming = naming
        self._own_block_tokens = own_block_tokens
        self._asked_rank = self._rank = rank
        self._blocks: EngineBlocks | None = None
        self._sequencer = Sequencer(replays=replays, clock=clock)
        self._memory: Entries | None = None
        """Of a writer before us, while it isn't proven."""
        self._grown: EngineBlocks | None = None
        """The blocks that it tells of, where they have been made already."""
        self._of_next_life = False
        self._whole = False
        """All of this life's messages were taken, or all since its cache was empty."""
        self.counts = EventCounts()

    @property
    def sees_events(self) -> bool:
        """Whether this life's events have been seen: until then nothing is known of its blocks."""
        return self._blocks is not None and self._sequencer.heard

    @property
    def partial(self) -> bool:
        """Messages were missed for good: the engine may hold more than we know of."""
        return self.sees_events and not self._whole

    @property
    def sequence(self) -> SequenceCounts:
        """What the order of messages was like."""
        return self._sequencer.counts

    @property
    def held(self) -> int:
        """Messages that wait for a replay."""
        return self._sequencer.held

    @property
    def wanted(self) -> Replay | None:
        """The replay that should be fetched at present."""
        return self._sequencer.wanted if self._blocks is not None else None

    @property
    def unproven(self) -> bool:
        """A memory was given by `resume`, and no message or replay has yet shown it to be true."""
        return self._sequencer.unproven

    @property
    def blocks(self) -> EngineBlocks | None:
        """The mirror itself, for its counters; None until the model's name is known."""
        return self._blocks

    def serve(self, model: str) -> None:
        """The engine's model is known (or another one than before): keys are seeded with it."""
        if self._blocks is not None:
            self._memory = self._grown = None
            self._whole = False
            self._sequencer.forget()
        self._blocks = EngineBlocks(model, self._own_block_tokens, naming=self._naming)
        self._changed(Delta(reset=True, stored=(), removed=()))

    def present(self) -> list[int]:
        """All own keys that are present on the GPU."""
        return [] if self._blocks is None else self._blocks.present()

    def tiers_present(self) -> dict[str, tuple[int, ...]]:
        """Own keys that are present on each slower tier."""
        return {} if self._blocks is None else self._blocks.tiers_present()

    def freeze(self) -> Callable[[], Entries]:
        """What makes all that a writer after us needs to go on from this moment.

        To be called in a thread: that takes some microseconds for each block.
        """
        memory = self._memory
        if memory is not None:
            return lambda: memory
        if self._blocks is None:
            return Entries
        frozen, whole = self._blocks.freeze(self._sequencer.last), self._whole
        return lambda: replace(frozen.entries(), whole=whole)

    def entries(self) -> Entries:
        """The same at once, where blocks are few or nothing else has to go on."""
        return self.freeze()()

    def grown(self, entries: Entries) -> EngineBlocks:
        """The blocks that a memory tells of, for `resume`.

        May be called in a thread: it takes some microseconds for each.
        """
        blocks = EngineBlocks("", self._own_block_tokens, naming=self._naming)
        blocks.restore(entries)
        return blocks

    def resume(
        self, entries: Entries, engine_seq: int | None, grown: EngineBlocks | None = None
    ) -> bool:
        """Go on from the memory of a writer before us, of the same life of the engine; `grown`: its
        blocks, where they were made beforehand.

        It is believed, and told to `changed`, once the engine's next message or a replay shows that
        none was missed; else it is dropped. False when messages were taken already: too late.
        """
        if self._sequencer.last is not None or engine_seq is None:
            return False
        self._memory, self._grown = entries, grown
        self._sequencer.resume(engine_seq, whole=entries.whole)
        return True

    def new_life(self) -> None:
        """The engine restarted. Events of the new life that came before the news are kept."""
        if self._of_next_life:
            self._of_next_life = False
            return
        self._sequencer.forget()
        self._clear()

    def same_life(self) -> None:
        """The engine is still the same: a fallen sequence was not a sign of a restart."""
        self._of_next_life = False

    def look(self) -> None:
        """Call this now and then: what could not be had before may be there by now."""
        self._sequencer.look()

    def on(self, frame: Frame) -> bool:
        """Take one message as it was published."""
        if self._blocks is None:
            return False
        self.counts.frames += 1
        return self._go(self._sequencer.live(frame))

    def replayed(self, frame: Frame) -> bool:
        """Take one message of the replay that is wanted."""
        return self._go(self._sequencer.replayed(frame))

    def replay_ended(self, *, complete: bool) -> bool:
        """The replay that was wanted is over, or broke off."""
        return self._go(self._sequencer.replay_ended(complete=complete))

    def _go(self, steps: Iterable[Step]) -> bool:
        restarted = False
        for step in steps:
            match step:
                case Frame():
                    self._whole = self._whole or step.seq == 0
                    self._apply(step.payload)
                case Proven.PROVEN:
                    self._believe_memory()
                case Forget.RESTART:
                    restarted = self._of_next_life = True
                    self._clear()
                case Forget():
                    self._clear()
        return restarted

    def _apply(self, payload: bytes) -> None:
        assert self._blocks is not None
        try:
            batch = decode(payload)
        except DecodeError:
            self.counts.undecodable += 1
            self._clear()
            return
        self.counts.skipped += batch.skipped
        if batch.dp_rank is not None:
            if self._rank is None:
                self._rank = batch.dp_rank
            if batch.dp_rank != self._rank:
                self.counts.other_ranks += 1
                return
        self._whole = self._whole or any(
            isinstance(event, AllBlocksCleared) for event in batch.events
        )
        self._tell(self._blocks.apply(batch.events))
        if self._blocks.waiting:
            self._sequencer.tell_afresh()

    def _believe_memory(self) -> None:
        memory, grown = self._memory, self._grown
        self._memory = self._grown = None
        if memory is not None and self._blocks is not None:
            self._whole = memory.whole
            self._tell(self._blocks.take(grown or self.grown(memory)))

    def _clear(self) -> None:
        self._memory, self._grown, self._whole = None, None, False
        self._rank = self._asked_rank
        if self._blocks is not None:
            self._tell(self._blocks.clear())

    def _tell(self, delta: Delta) -> None:
        if not delta.empty:
            self._changed(delta)
