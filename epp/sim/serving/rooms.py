"""Offers that wait under a name for the decode engine that asks for it."""

import asyncio
from collections import OrderedDict

MAX_OFFERS = 4096
"""Offers that nobody has asked for; the oldest is forgotten for a new one."""


class Rooms:
    """The offers of one engine."""

    def __init__(self) -> None:
        self._offers: OrderedDict[str, dict[str, object]] = OrderedDict()
        self._news = asyncio.Event()

    def put(self, name: str, params: dict[str, object]) -> None:
        """Keep an offer; a second one of a name takes the place of the first."""
        self._offers[name] = params
        if len(self._offers) > MAX_OFFERS:
            self._offers.popitem(last=False)
        self._news.set()
        self._news = asyncio.Event()

    async def take(self, name: str, within_s: float) -> dict[str, object] | None:
        """The offer of a name, once it is there; None when it does not come in time."""
        try:
            async with asyncio.timeout(within_s):
                while name not in self._offers:
                    await self._news.wait()
        except TimeoutError:
            return None
        return self._offers.pop(name)
