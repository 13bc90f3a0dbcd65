"""Replicas tell each other what they have put on endpoints: around `replicas` and a `SumsBoard`.

Sums that changed are said within a twentieth of a second, and unchanged ones a few times in a
lease. With many endpoints a round is longer, so that neither the board nor a replica is busy with
it. A board that is away, slow or broken costs only what others have reserved: that is forgotten
when it is older than the lease, and decisions go on by our own reservations and the engines'
reports. Nothing here is on the request path.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from epp.errors import EppError
from epp.framework import Incarnation

from .replicas import Heard, own
from .reservation import Sums
from .store import SumsBoard
from .sums import LEASE_S, ReplicaSums

ROUND_S = 0.05
ENTRY_S = 0.0001
"""What each endpoint of each replica adds to a round: reading one takes a twentieth of that."""
KEYS = 16
"""Keys that add as much."""
LONGEST_ROUND_S = LEASE_S / 5
AGAIN_S = LEASE_S / 4
"""Unchanged sums are said again so often."""
CALL_S = 1.0
"""No word with the board takes longer."""
LONGEST_PAUSE_S = 2.0


class SharedState(Protocol):
    """What sharing needs of `PoolState`."""

    def reserved(self) -> dict[Incarnation, Sums]: ...
    def foretold(self) -> Mapping[Incarnation, Sequence[int]]: ...
    def elsewhere(self, others: Collection[ReplicaSums], /, now: float) -> None: ...


class Sharing:
    """`run` until cancelled. `counts` has words `said`, `heard`, `failed` and `lapsed`."""

    def __init__(
        self,
        state: SharedState,
        board: SumsBoard,
        name: str,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        call_s: float = CALL_S,
        counts: Counter[str] | None = None,
    ) -> None:
        """`name`: unique to this life of this replica. `counts`: the board's own, to add to."""
        self.counts: Counter[str] = Counter() if counts is None else counts
        self._state = state
        self._board = board
        self._name = name
        self._clock = clock
        self._rng = rng
        self._call_s = call_s
        self._heard = Heard(LEASE_S)
        self._said = ReplicaSums(name)
        self._said_at = float("-inf")
        self._failures = 0

    @property
    def replicas(self) -> int:
        """Others whose reservations are counted now."""
        return self._heard.replicas

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._forget())
            while True:
                pause = await self._round()
                await asyncio.sleep(pause)

    async def _round(self) -> float:
        """Say and hear once; how long to wait then."""
        sums = own(self._name, self._state.reserved(), self._state.foretold())
        try:
            async with asyncio.timeout(self._call_s):
                if sums != self._said or self._clock() - self._said_at >= AGAIN_S:
                    await self._board.publish(sums)
                    self._said, self._said_at = sums, self._clock()
                    self.counts["said"] += 1
                others = await self._board.others()
        except (EppError, OSError, TimeoutError):
            self.counts["failed"] += 1
            self._said_at = float("-inf")
            self._failures += 1
            pause = min(LONGEST_PAUSE_S, ROUND_S * 2.0 ** min(self._failures, 10))
            return pause * self._rng.uniform(0.5, 1.0)
        self._failures = 0
        self._heard.hear(others, self._clock())
        self._state.elsewhere(others, self._clock())
        self.counts["heard"] += len(others)
        entries = sum(1 + len(one.keys) // KEYS for said in (sums, *others) for one in said.sums)
        round_s = min(LONGEST_ROUND_S, ROUND_S + ENTRY_S * entries)
        return round_s * self._rng.uniform(0.8, 1.2)

    async def _forget(self) -> None:
        """What nobody repeats is over, also while a call to the board hangs."""
        while True:
            await asyncio.sleep(LEASE_S / 8)
            if self._heard.over(self._clock()):
                self.counts["lapsed"] += 1
                self._state.elsewhere((), self._clock())
