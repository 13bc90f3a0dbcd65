"""The files that a sidecar reads again and again: the pool's keys and its endpoints."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from epp.config.endpoints_file import EndpointEntry, parse_entries
from epp.config.key_file import read_keys
from epp.config.text_file import read_file
from epp.errors import ConfigError
from epp.seals import SealKeys

from .legs import LegKeys

T = TypeVar("T")

SETTLE_S = 0.05
"""A change is read once it has stood still for this long, so that half a file is not read."""

log = structlog.get_logger(__name__)


def read_leg_keys(path: Path) -> LegKeys:
    """The first key signs. Raises ConfigError, which shows no key."""
    return LegKeys(*read_keys(path))


def read_seal_keys(path: Path) -> SealKeys:
    """The pickers' keys. Raises ConfigError, which shows no key."""
    return SealKeys(*read_keys(path))


def read_endpoints(path: Path) -> tuple[EndpointEntry, ...]:
    """The pool's endpoints. Raises ConfigError."""
    return parse_entries(read_file(path), str(path)).entries


async def follow(
    path: Path, read: Callable[[Path], T], take: Callable[[T], None], interval_s: float
) -> None:
    """Give `take` what the file says whenever it is another than before, for ever.

    A file that is missing or bad changes nothing, and is said once.
    """
    seen: object = None
    while True:
        mark = await asyncio.to_thread(_mark, path)
        if mark != seen:
            await asyncio.sleep(SETTLE_S)
            if mark != await asyncio.to_thread(_mark, path):
                continue
            seen = mark
            try:
                take(await asyncio.to_thread(read, path))
            except ConfigError as error:
                log.warning("a file is not used", why=str(error))
        await asyncio.sleep(interval_s)


def _mark(path: Path) -> tuple[int, ...]:
    """Changes whenever the file behind the path does; empty when there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
