"""What one replica does for all of them: a named lease says whose turn it is.

Replicas stand for a lease by an `Elector` each. Whoever holds it does the work; a holder that dies
or cannot renew it loses it, and another has it within moments of its end. While nobody can be asked
nobody holds anything: what is elected must be such that all go on without it.

Clocks need not agree. A holder counts by its own monotonic clock from before it asked, and stops a
margin earlier than the register forgets it, so that of two clocks of almost the same speed the
holder's runs out first.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Protocol

import structlog

from epp.errors import StoreError

LEASE_S = 3.0
"""How long the register remembers a holder that does not ask again."""
MARGIN = 0.2
"""Share of it by which a holder stops earlier."""
RENEWALS = 4
"""How often a holder asks within a lease, so that it may miss one or two."""

LEAST_PAUSE_S = 0.05

PLAIN_WRITER = "plain-writer"
"""Who writes for engines without a sidecar."""

log = structlog.get_logger(__name__)


class Register(Protocol):
    """Where replicas agree on who holds what. Owned by one elector."""

    async def take(self, name: str, lease_s: float) -> bool:
        """Hold this lease from now on for so long, or for so long again. False: another holds it.
        Raises StoreError."""

    async def release(self, name: str) -> None:
        """Give it back, where we hold it and that can be said at once."""

    async def close(self) -> None: ...


class Alone:
    """The register of who hosts the store for all: nobody else stands."""

    async def take(self, _name: str, _lease_s: float) -> bool:
        return True

    async def release(self, _name: str) -> None: ...

    async def close(self) -> None: ...


class Elector:
    """One replica's stand for one lease. `run` in a task; look at `held` before each deed.

    `counts`: taken, lost (another has it, or we could not renew it), failed (nobody to ask).
    """

    def __init__(
        self,
        register: Register,
        name: str,
        *,
        clock: Callable[[], float],
        rng: Random,
        lease_s: float = LEASE_S,
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self.name = name
        self.counts: Counter[str] = Counter(taken=0, lost=0, failed=0)
        self._register = register
        self._clock = clock
        self._rng = rng
        self._lease_s = lease_s
        self._until = float("-inf")
        self._told = False
        """Whether it was last told that we hold it."""

    @property
    def held(self) -> bool:
        """Whether it is our turn at this moment."""
        return self._clock() < self._until

    async def run(self) -> None:
        """Stand until cancelled; what is held then is given back."""
        try:
            while True:
                await self._ask()
                self._tell()
                await asyncio.sleep(self._pause())
        finally:
            await self._leave()

    async def _ask(self) -> None:
        asked = self._clock()
        try:
            granted = await self._register.take(self.name, self._lease_s)
        except StoreError:
            self.counts["failed"] += 1
            return
        self._until = asked + self._lease_s * (1 - MARGIN) if granted else float("-inf")

    def _tell(self) -> None:
        if self.held is self._told:
            return
        self._told = self.held
        self.counts["taken" if self._told else "lost"] += 1
        log.info("lease taken" if self._told else "lease lost", lease=self.name)

    def _pause(self) -> float:
        """Not far past the end of what we hold, so that its loss is told as it happens."""
        pause = self._lease_s / RENEWALS * self._rng.uniform(0.8, 1.0)
        left = self._until - self._clock()
        return min(pause, left + LEAST_PAUSE_S) if left > 0 else pause

    async def _leave(self) -> None:
        self._until = float("-inf")
        await self._register.release(self.name)
        await self._register.close()
