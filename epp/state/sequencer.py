"""Puts an engine's messages in order: live ones, and those that it is asked to say again. Pure.

The engine's own sequence decides whether events may be believed. Where messages are missing, the
engine is asked for a replay, and live ones wait behind it, so that nothing old is applied after
something new. Where it can't be mended everything is forgotten: a reader then knows less, but
nothing wrong.

A replay is asked from the last message that is known, not from the one after it: an engine that
says that one again is still in the same life. One that has nothing at or after it has begun anew.
"""

from collections import deque
from collections.abc import Callable

from .events import Frame
from .sequence import Continuity, Forget, Proven, Replay, SequenceCounts, Step, continuity

MAX_HELD = 10_000
"""Live messages that wait for a replay."""
MAX_HELD_BYTES = 64 << 20
ATTEMPTS = 3
"""Replays for one gap before it is given up."""
COOLDOWN_S = 30.0
"""After a replay that failed: until then gaps aren't mended."""


class Sequencer:
    """Watches one publisher. Every call returns what to do, in order.

    With `replays`, look at `wanted` after each call. Give the messages of that replay to `replayed`
    while it is still the one that is wanted, then call `replay_ended`.
    """

    def __init__(
        self,
        *,
        replays: bool = False,
        clock: Callable[[], float] = lambda: 0.0,
        max_held: int = MAX_HELD,
        max_held_bytes: int = MAX_HELD_BYTES,
    ) -> None:
        """`clock` is monotonic, in seconds."""
        if max_held <= 0 or max_held_bytes <= 0:
            raise ValueError("max_held and max_held_bytes must be positive")
        self._replays = replays
        self._clock = clock
        self._max_held = max_held
        self._max_held_bytes = max_held_bytes
        self._held: deque[Frame] = deque()
        self._held_bytes = 0
        self._attempts = 0
        self._rest_until = float("-inf")
        self._same_life = False
        """The replay under way has shown a message that we knew."""
        self._moved = False
        """It has brought messages that we took."""
        self._broken = False
        """Messages are missing in the middle of it: the rest is asked for once more."""
        self._unproven = False
        self._afresh = False
        """The replay under way tells everything again."""
        self._afresh_from = float("-inf")
        """When everything may be asked for again."""
        self._incomplete = False
        """Messages before those that we have are missing; the engine may still have them."""
        self.last: int | None = None
        """Sequence of the latest message applied, None before the first of this life."""
        self.wanted: Replay | None = None
        self.heard = False
        """Whether the publisher has said anything in this life."""
        self.counts = SequenceCounts()
        self._ask(0)

    @property
    def held(self) -> int:
        """Live messages that wait."""
        return len(self._held)

    @property
    def unproven(self) -> bool:
        """A memory was given and has not been proven true or false."""
        return self._unproven

    def resume(self, last: int | None, *, whole: bool = True) -> None:
        """Go on behind `last`, from the memory of a writer before; before any message. `whole`: it
        had missed none before that; else the engine may still have them."""
        self.last = last
        self._incomplete = last is not None and not whole
        self._unproven = last is not None
        self._ask(last or 0)

    def forget(self) -> None:
        """The engine began a new life: the next message is a first one."""
        self._drop_held()
        self.last, self.heard = None, False
        self._unproven = self._afresh = self._incomplete = False
        self._rest_until = self._afresh_from = float("-inf")
        self.wanted = None
        self._ask(0)

    def look(self) -> None:
        """Call this now and then: what could not be had before may be there by now."""
        if self._incomplete:
            self.tell_afresh()

    def tell_afresh(self) -> bool:
        """Ask for everything again, if that can be had. What is known stays until it begins."""
        now = self._clock()
        if not self._may_replay() or self.wanted is not None or now < self._afresh_from:
            return False
        self._afresh, self._afresh_from = True, now + COOLDOWN_S
        self._ask(0)
        return True

    def live(self, frame: Frame) -> list[Step]:
        """One message as it was published."""
        self.heard = True
        if self.wanted is not None:
            return self._hold(frame)
        return self._follow(frame)

    def replayed(self, frame: Frame) -> list[Step]:
        """One message of the replay that is wanted."""
        if self.wanted is None:
            return []
        self.heard = True
        self.counts.replayed += 1
        if self._afresh:
            return self._begin_afresh(frame)
        return self._move(frame) if self.last is None else self._go_on(frame, self.last)

    def replay_ended(self, *, complete: bool) -> list[Step]:
        """The replay that was wanted has come to its end, or broke off before."""
        asked, self.wanted = self.wanted, None
        if asked is None:
            return []
        nothing_came = not self._moved and (self._afresh or asked.start == self.last)
        self._afresh = False
        steps: list[Step] = []
        if self._broken and self._moved:
            self._attempts = 0
        if complete:
            self.heard = True
            if self._broken:
                steps += self._mend()
            elif self._same_life:
                steps += self._prove()
            elif self.last is not None and nothing_came:
                self.counts.restarts += 1
                steps += self._lose(Forget.RESTART)
        else:
            self.counts.failed_replays += 1
            self._incomplete = True
            self._rest_until = self._clock() + COOLDOWN_S
            if self._unproven:
                steps += self._lose(Forget.GAP)
        return steps + self._drain()

    def _go_on(self, frame: Frame, last: int) -> list[Step]:
        """A message of a replay behind those that we have."""
        if frame.seq <= last:
            self._same_life = self._same_life or frame.seq == last
            return []
        if self._broken:
            return []
        if frame.seq == last + 1:
            return [*self._prove(), *self._move(frame)]
        if self._same_life or self._moved:
            self._broken = True
            return []
        return [*self._lose(Forget.GAP), *self._move(frame)]

    def _follow(self, frame: Frame) -> list[Step]:
        match continuity(self.last, frame.seq):
            case Continuity.NEXT:
                return [*self._prove(), *self._take(frame)]
            case Continuity.DUPLICATE:
                self.counts.duplicates += 1
                return self._prove()
            case Continuity.FIRST:
                return self._first(frame)
            case Continuity.RESTART:
                self.counts.restarts += 1
                return [*self._lose(Forget.RESTART), *self._first(frame)]
            case Continuity.GAP:
                self.counts.gaps += 1
                if self._may_replay():
                    self._ask(self.last or 0)
                    return self._hold(frame)
                return [*self._lose(Forget.GAP), *self._take(frame)]

    def _first(self, frame: Frame) -> list[Step]:
        if frame.seq > 0 and self._may_replay():
            self._ask(0)
            return self._hold(frame)
        return self._take(frame)

    def _hold(self, frame: Frame) -> list[Step]:
        steps: list[Step] = []
        if self._held and frame.seq <= self._held[-1].seq:
            if frame.seq == self._held[-1].seq:
                self.counts.duplicates += 1
                return []
            # A new life in the middle of a replay of the old one.
            self.counts.restarts += 1
            self._drop_held()
            steps = self._lose(Forget.RESTART)
            self._afresh = False
            self._ask(0)
        self._held.append(frame)
        self._held_bytes += len(frame.payload)
        if len(self._held) > self._max_held or self._held_bytes > self._max_held_bytes:
            self.counts.overflows += 1
            self._incomplete = True
            self._rest_until = self._clock() + COOLDOWN_S
            self.wanted, self._afresh = None, False
            steps += self._drain()
        return steps

    def _mend(self) -> list[Step]:
        """Ask again for what a replay left out."""
        if self._attempts < ATTEMPTS and self._may_replay():
            self._ask(self.last or 0)
            return []
        return self._lose(Forget.GAP)

    def _drain(self) -> list[Step]:
        """Apply what waited, or ask again for what still lies before it."""
        steps: list[Step] = []
        while self._held and self.wanted is None:
            frame = self._held[0]
            if self.last is not None and frame.seq <= self.last:
                self._release()
            elif self.last is None or frame.seq == self.last + 1:
                steps += [*self._prove(), *self._take(self._release())]
            elif self._attempts < ATTEMPTS and self._may_replay():
                self._ask(self.last)
            else:
                steps += [*self._lose(Forget.GAP), *self._take(self._release())]
        if self.wanted is None:
            self._attempts = 0
        return steps

    def _begin_afresh(self, frame: Frame) -> list[Step]:
        """The replay of everything helps only when it does begin with the first message."""
        if frame.seq != 0:
            self._afresh_from = float("inf")
            self.wanted, self._afresh = None, False
            return self._drain()
        self._afresh = False
        return [*self._lose(Forget.AFRESH), *self._move(frame)]

    def _take(self, frame: Frame) -> list[Step]:
        if frame.seq == 0:
            self._incomplete = False
        self.last = frame.seq
        return [frame]

    def _move(self, frame: Frame) -> list[Step]:
        if self.last is None and frame.seq != 0:
            self._afresh_from = float("inf")  # the engine no longer has its first message
        self._moved = True
        return self._take(frame)

    def _prove(self) -> list[Step]:
        if not self._unproven:
            return []
        self._unproven = False
        return [Proven.PROVEN]

    def _lose(self, why: Forget) -> list[Step]:
        self.last, self._unproven = None, False
        self._incomplete = why is Forget.GAP
        if why is Forget.RESTART:
            self._afresh_from = float("-inf")
        return [why]

    def _ask(self, start: int) -> None:
        if not self._replays:
            return
        self.wanted = Replay(start)
        self._same_life = self._moved = self._broken = False
        self._attempts += 1
        self.counts.replays += 1

    def _may_replay(self) -> bool:
        return self._replays and self._clock() >= self._rest_until

    def _release(self) -> Frame:
        frame = self._held.popleft()
        self._held_bytes -= len(frame.payload)
        return frame

    def _drop_held(self) -> None:
        self._held.clear()
        self._held_bytes = 0
