"""The files that a sidecar reads again and again: the pool's keys, its endpoints, certificates."""

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed(Generic[T]):
    """Files that are read again whenever one of them differs."""

    paths: tuple[Path, ...]
    read: Callable[[], T]
    """Raises ConfigError."""
    take: Callable[[T], None]

    async def run(self, interval_s: float, refused: Callable[[], None]) -> None:
        """Give `take` what the files say whenever it is another than before, for ever.

        What is missing or bad changes nothing; it is said, and told to `refused`, once.
        """
        seen: object = None
        while True:
            mark = await asyncio.to_thread(_marks, self.paths)
            if mark != seen:
                await asyncio.sleep(SETTLE_S)
                if mark != await asyncio.to_thread(_marks, self.paths):
                    continue
                seen = mark
                try:
                    self.take(await asyncio.to_thread(self.read))
                except ConfigError as error:
                    refused()
                    log.warning("a file is not used", why=str(error))
            await asyncio.sleep(interval_s)


def _marks(paths: Iterable[Path]) -> list[tuple[int, ...]]:
    return [_mark(path) for path in paths]


def _mark(path: Path) -> tuple[int, ...]:
    """Changes whenever the file behind the path does; empty when there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
