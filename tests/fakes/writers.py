"""A log in memory that fails, hangs and fences as a test says."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from epp.errors import Fenced, StoreError
from epp.framework import Incarnation
from epp.state.store import Saved
from tests.fakes.sidecars import View


class Fate(Enum):
    """What becomes of one call."""

    FINE = "fine"
    LOST = "lost"
    """Fails, and nothing is in the log."""
    UNKNOWN = "unknown"
    """Fails, but it is in the log."""
    FENCED = "fenced"
    HANG = "hang"


@dataclass
class FakeLog:
    """A `Writer` and the reader behind it. Each call takes its fate from `fates`, then is fine."""

    view: View = field(default_factory=View)
    fates: list[Fate] = field(default_factory=list)
    claims: list[tuple[Incarnation, int]] = field(default_factory=list)
    appends: int = 0
    times: list[float] = field(default_factory=list)
    closed: int = 0
    saves: list[Saved] = field(default_factory=list)
    memory: bytes | None = None
    """What `recall` answers."""
    writers: int = 1
    heard: Callable[[], None] = lambda: None
    _may_append: bool = False

    async def recall(self, incarnation: Incarnation) -> bytes | None:
        await self._suffer(lambda: None)
        return self.memory

    async def claim(self, incarnation: Incarnation, nonce: int) -> None:
        self.claims.append((incarnation, nonce))
        self._may_append = False
        await self._suffer(lambda: None)
        self._may_append = True

    async def append(self, record: bytes) -> None:
        assert self._may_append, "append without a claim that stands"
        self.appends += 1
        self.times.append(asyncio.get_running_loop().time())
        try:
            await self._suffer(lambda: self.view.apply(record))
        except BaseException:
            self._may_append = False
            raise
        self.heard()

    async def save(self, saved: Saved) -> None:
        assert self._may_append, "save without a claim that stands"
        self.saves.append(saved)
        try:
            await self._suffer(lambda: self.view.read(saved.parts))
        except BaseException:
            self._may_append = False
            raise
        self.heard()

    async def close(self) -> None:
        self.closed += 1
        self._may_append = False

    async def _suffer(self, act: Callable[[], None]) -> None:
        fate = self.fates.pop(0) if self.fates else Fate.FINE
        if fate is Fate.HANG:
            await asyncio.Event().wait()
        if fate in {Fate.FINE, Fate.UNKNOWN}:
            act()
        if fate in {Fate.LOST, Fate.UNKNOWN}:
            raise StoreError("the log is away")
        if fate is Fate.FENCED:
            raise Fenced("somebody else took over")
