"""Wait for something that another task or process will make true."""

import asyncio
from collections.abc import Callable

from tests.timing import scaled


async def until(condition: Callable[[], object], *, within_s: float = 5.0) -> None:
    """Return as soon as `condition()` holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(scaled(within_s)):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)
