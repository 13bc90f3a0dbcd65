"""One connection to Redis. Every call has a time limit, and one that failed drops the line."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from epp.errors import StoreError

from .line import Client
from .place import Place

T = TypeVar("T")

CALL_S = 1.0
"""A call takes no longer, however slow Redis is."""


class Link:
    """Owned by one task: a call is never concurrent with another."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._client: Client | None = None

    @property
    def is_open(self) -> bool:
        """False before the first call and after one that failed."""
        return self._client is not None

    async def call(self, use: Callable[[Redis], Awaitable[T]], limit_s: float) -> T:
        """Use the connection, opened where there is none. Raises StoreError without secrets.

        The client itself cuts the line of a call that was cancelled: its answer must not meet
        the next one (E02).
        """
        try:
            async with asyncio.timeout(limit_s):
                if self._client is None:
                    self._client = await self._place.open()
                return await use(self._client)
        except (RedisError, OSError, TimeoutError, ValueError, TypeError, StoreError) as error:
            self.drop()
            where = self._place.access.where
            raise StoreError(f"Redis at {where}: {_brief(error)}") from error

    def drop(self) -> None:
        """Cut the connection; the next call opens another one, wherever the keys are then."""
        client, self._client = self._client, None
        if client is not None:
            client.cut()


def _brief(error: Exception) -> str:
    if isinstance(error, StoreError):
        return str(error)
    text = str(error).splitlines()[0][:200] if str(error) else ""
    return f"{type(error).__name__} {text}".strip()
