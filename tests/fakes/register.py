"""A register of leases in memory, shared by replicas of one test, on the clock of its loop."""

import asyncio

from epp.errors import StoreError


class Leases:
    """Who holds what until when. `broken`: "" works, "fails" refuses everybody, "hangs" is slow."""

    def __init__(self, slow_s: float = 1.0) -> None:
        self.broken = ""
        self.holders: dict[str, tuple[str, float]] = {}
        self.asked = 0
        self.slow_s = slow_s

    def of(self, holder: str) -> "Register":
        return Register(self, holder)

    def holder(self, name: str) -> str | None:
        """As the register knows it."""
        holder, until = self.holders.get(name, ("", 0.0))
        return holder if until > asyncio.get_running_loop().time() else None


class Register:
    """One replica's way to it."""

    def __init__(self, leases: Leases, holder: str) -> None:
        self._leases = leases
        self._holder = holder

    async def take(self, name: str, lease_s: float) -> bool:
        self._leases.asked += 1
        await self._works()
        if self._leases.holder(name) not in {None, self._holder}:
            return False
        self._leases.holders[name] = self._holder, asyncio.get_running_loop().time() + lease_s
        return True

    async def release(self, name: str) -> None:
        if self._leases.holder(name) == self._holder and not self._leases.broken:
            del self._leases.holders[name]

    async def close(self) -> None: ...

    async def _works(self) -> None:
        if self._leases.broken == "hangs":
            await asyncio.sleep(self._leases.slow_s)
            raise StoreError("the register does not answer")
        if self._leases.broken == "fails":
            raise StoreError("the register is away")
