"""Wait for something that tells nobody when it happens."""

import asyncio
from collections.abc import Callable


async def eventually(holds: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Return once it holds; TimeoutError when it never does."""
    async with asyncio.timeout(within_s):
        while True:
            if holds():
                return
            await asyncio.sleep(0.002)
