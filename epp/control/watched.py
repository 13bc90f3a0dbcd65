"""A file that is looked at again and again. So edits, renames and the symlink swaps of
a mounted ConfigMap are followed alike."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path


async def changes(
    path: Path | str, *, interval_s: float = 0.5, settle_s: float = 0.05
) -> AsyncIterator[None]:
    """At first, and whenever what stands behind the path differs, also when it comes or goes.

    A change is told once it has stood still for `settle_s`, so that half a file is not read.
    """
    seen: object = None
    while True:
        mark = await asyncio.to_thread(_signature, path)
        if mark != seen:
            await asyncio.sleep(settle_s)
            if mark != await asyncio.to_thread(_signature, path):
                continue
            seen = mark
            yield
        await asyncio.sleep(interval_s)


def _signature(path: Path | str) -> tuple[int, ...]:
    """Changes whenever the file behind the path does; empty when there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
