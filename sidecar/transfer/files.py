"""The files that a sidecar reads: leg keys once, the pool's endpoints again and again."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from epp.config.endpoints_file import EndpointEntry, parse_entries
from epp.config.located import MAX_BYTES
from epp.errors import ConfigError

from .legs import LegKeys

MIN_KEY_BYTES = 32
MAX_KEY_FILE = 4096
SETTLE_S = 0.05
"""A change is read once it has stood still for this long, so that half a file is not read."""

log = structlog.get_logger(__name__)


def read_leg_keys(path: Path) -> LegKeys:
    """One or two keys, one on a line; the first signs. Raises ConfigError, which shows no key."""
    lines = [line.strip() for line in _read(path, MAX_KEY_FILE).splitlines()]
    keys = [line for line in lines if line]
    if len(keys) not in {1, 2}:
        raise ConfigError(str(path), f"holds {len(keys)} keys; write one, or two to change it")
    if any(len(key) < MIN_KEY_BYTES for key in keys):
        raise ConfigError(str(path), f"holds a key of less than {MIN_KEY_BYTES} bytes")
    return LegKeys(keys[0], keys[1] if keys[1:] else None)


def read_endpoints(path: Path) -> tuple[EndpointEntry, ...]:
    """The pool's endpoints. Raises ConfigError."""
    return parse_entries(_read(path, MAX_BYTES), str(path)).entries


async def follow_endpoints(
    path: Path, take: Callable[[tuple[EndpointEntry, ...]], None], interval_s: float
) -> None:
    """Give `take` the list whenever the file is another than before, for ever.

    A file that is missing or bad keeps the last good list, and is said once.
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
                take(await asyncio.to_thread(read_endpoints, path))
            except ConfigError as error:
                log.warning("the endpoints file is not used", why=str(error))
        await asyncio.sleep(interval_s)


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(most + 1)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    if len(text) > most:
        raise ConfigError(str(path), f"is larger than {most} bytes")
    return text


def _mark(path: Path) -> tuple[int, ...]:
    """Changes whenever the file behind the path does; empty when there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
