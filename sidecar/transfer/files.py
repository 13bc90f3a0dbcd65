"""The files that a sidecar reads again and again: the pool's keys, its endpoints, certificates."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from epp.config.endpoints_file import EndpointEntry, parse_entries
from epp.config.key_file import read_keys
from epp.config.text_file import read_file
from epp.config.watched import changes
from epp.errors import ConfigError
from epp.seals import SealKeys

from .legs import LegKeys

T = TypeVar("T")

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
        async for _ in changes(*self.paths, interval_s=interval_s):
            try:
                self.take(await asyncio.to_thread(self.read))
            except ConfigError as error:
                refused()
                log.warning("a file is not used", why=str(error))
