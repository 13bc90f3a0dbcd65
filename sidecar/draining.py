"""The end of a pod, as its sidecar sees it: nobody new is taken, and what has begun is finished.

Whoever wants the pod to end asks for it twice at most: the engine's preStop hook at `/drain`, which
is answered when the engine may end, and SIGTERM, which reaches a native sidecar after its engine
has ended. Both wait for the same drain.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

POLL_S = 0.05

log = structlog.get_logger(__name__)


class Work(Protocol):
    """What the relay does."""

    @property
    def in_flight(self) -> int: ...


class Blocks(Protocol):
    """What the engine keeps."""

    def uses_blocks(self, since: float, /) -> bool:
        """Whether blocks of its cache are in use, as far as it has told after `since`."""


class Drain:
    """One for a sidecar. Ends when nothing is in flight, and the engine keeps no blocks for others:
    of a prompt that it computed for another pod until that has pulled them, or their lease is over.
    """

    def __init__(
        self,
        *,
        begun: Callable[[], None],
        work: Work,
        blocks: Blocks,
        settle_s: float,
        grace_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`begun` says to everybody that this pod takes nothing new. It lasts `settle_s` at least,
        until gateways have noticed, and `grace_s` at most."""
        self._begun = begun
        self._work = work
        self._blocks = blocks
        self._settle_s = settle_s
        self._grace_s = grace_s
        self._clock = clock

    async def run(self) -> int:
        """Returns the exchanges that had not ended when the grace was over."""
        self._begun()
        began = self._clock()
        idle_since: float | None = None
        while True:
            now = self._clock()
            if self._work.in_flight:
                idle_since = None
            elif idle_since is None:
                idle_since = now
            settled = now - began >= self._settle_s and idle_since is not None
            if settled and not self._blocks.uses_blocks(idle_since or now):
                break
            if now - began >= self._grace_s:
                break
            await asyncio.sleep(POLL_S)
        left = self._work.in_flight
        log.info("sidecar is drained", left=left, after_s=round(self._clock() - began, 1))
        return left
