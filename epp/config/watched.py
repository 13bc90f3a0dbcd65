"""Files that are looked at again and again. So edits, renames and the symlink swaps of
a mounted ConfigMap or Secret are followed alike."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

Mark = tuple[tuple[int, ...], ...]


async def changes(
    *paths: Path | str, seen: Mark | None = None, interval_s: float = 0.5, settle_s: float = 0.05
) -> AsyncIterator[None]:
    """At first, and whenever what stands behind one of the paths differs, also when it comes or
    goes. With `seen`, a mark from when they were read, only what has changed since is told.

    A change is told once it has stood still for `settle_s`, so that half a file is not read.
    """
    while True:
        now = await asyncio.to_thread(mark, *paths)
        if now != seen:
            await asyncio.sleep(settle_s)
            if now != await asyncio.to_thread(mark, *paths):
                continue
            seen = now
            yield
        await asyncio.sleep(interval_s)


def mark(*paths: Path | str) -> Mark:
    """Changes whenever a file behind the paths does."""
    return tuple(map(_mark, paths))


def _mark(path: Path | str) -> tuple[int, ...]:
    """Empty when there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
