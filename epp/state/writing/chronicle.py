"""What one writer knows of its engine, and what of it is still to be said."""

import asyncio
from collections.abc import Callable

import structlog

from epp.state.engine_blocks import Delta, EngineBlocks
from epp.state.entries import Entries, EntriesError
from epp.state.events import Frame
from epp.state.sequence import Replay

from .cache import CacheMirror
from .life import Life
from .outbox import Outbox
from .publisher import Kept

READ_AT_ONCE = 20_000
"""Bytes of a memory that is read on the spot, in some milliseconds; more need a thread, so that
answers and decisions go on meanwhile."""

log = structlog.get_logger(__name__)


class Chronicle:
    """Takes the engine's KV events (`Taker`) and its lives; `outbox` and `kept` are what a
    publisher says of them.

    `wake` is called whenever there is something to publish.
    """

    def __init__(
        self,
        mirror: Callable[[Callable[[Delta], None]], CacheMirror] = CacheMirror,
        life: Life | None = None,
        name: str | None = None,
    ) -> None:
        """`mirror` makes the engine's mirror, given who hears of changes. `name`: of the engine in
        the log of a process that writes for several."""
        self._log = log if name is None else log.bind(endpoint=name)
        self.life = life or Life()
        self.wake: Callable[[], None] = lambda: None
        self.mirror = mirror(self._blocks_changed)
        self.outbox = Outbox()

    def start_ms(self) -> int:
        """The engine's present life; 0 while it has not been seen."""
        return self.life.start_ms

    def kept(self) -> Kept:
        """All that a snapshot says of the engine's cache."""
        freeze, blocks = self.mirror.freeze(), self.mirror.blocks
        return Kept(
            present=self.mirror.present(),
            tiers=self.mirror.tiers_present(),
            pack=lambda: freeze().pack(),
            blocks=0 if blocks is None else len(blocks),
        )

    async def resume(self, memory: bytes) -> None:
        """Go on from what a writer before us knew of the engine's present life."""
        life = self.life.start_ms
        try:
            if len(memory) > READ_AT_ONCE:
                entries, grown = await asyncio.to_thread(self._read, memory)
            else:
                entries, grown = self._read(memory)
        except EntriesError as error:
            self._log.warning("what an earlier writer knew cannot be read", reason=str(error))
            return
        if self.life.start_ms != life:
            return
        resumed = self.mirror.resume(entries, entries.engine_seq, grown)
        told = {"blocks": len(entries), "taken": resumed}
        self._log.info("going on from an earlier writer's state", **told)

    def _read(self, memory: bytes) -> tuple[Entries, EngineBlocks]:
        entries = Entries.unpack(memory)
        return entries, self.mirror.grown(entries)

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
        if take():
            self.life.lost()
        if self.mirror.sees_events is not seen:
            self.wake()

    def _blocks_changed(self, delta: Delta) -> None:
        self.outbox.blocks(delta)
        self.wake()

    # What is seen of the engine itself

    def engine_page(self, *, is_new_life: bool) -> None:
        """The engine answered for itself; `life.start_ms` is true at this moment."""
        if not is_new_life:
            self.mirror.same_life()
            return
        self.mirror.new_life()
        self.wake()

    def engine_model(self, model: str) -> None:
        """The name that the engine serves its base model under is known."""
        self.mirror.serve(model)
