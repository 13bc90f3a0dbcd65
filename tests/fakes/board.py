"""A board of sums in memory, shared by replicas of one test, on the clock of its loop."""

import asyncio

from epp.errors import StoreError
from epp.state.sums import LEASE_S, ReplicaSums, encode, parse


class Boards:
    """`broken`: "" works, "hangs" answers nobody, "fails" refuses everybody."""

    def __init__(self) -> None:
        self.broken = ""
        self.said: dict[str, tuple[bytes, float]] = {}

    def of(self, name: str) -> "Board":
        return Board(self, name)


class Board:
    """One replica's way to it."""

    def __init__(self, boards: Boards, name: str) -> None:
        self._boards = boards
        self._name = name

    async def publish(self, sums: ReplicaSums) -> None:
        await self._works()
        self._boards.said[self._name] = encode(sums), self._now + LEASE_S

    async def others(self) -> list[ReplicaSums]:
        await self._works()
        said = self._boards.said.items()
        return [
            parse(text) for name, (text, until) in said if name != self._name and until > self._now
        ]

    async def close(self) -> None:
        self._boards.said.pop(self._name, None)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _works(self) -> None:
        if self._boards.broken == "hangs":
            await asyncio.Event().wait()
        if self._boards.broken == "fails":
            raise StoreError("the board is away")
