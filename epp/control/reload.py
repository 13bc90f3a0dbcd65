"""Follow a configuration file: what is good takes over at once and whole, what is bad changes
nothing.

A file is read, checked and built aside, in a thread, while the old configuration goes on. Only what
was built without a fault is swapped in. A fault is told once, with its place, and counted.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from epp.config.text_file import read_file
from epp.config.watched import changes
from epp.errors import ConfigError

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Reload(Generic[T]):
    """Follows one file for one thing that is made from it."""

    def __init__(
        self,
        path: Path,
        *,
        text: bytes,
        build: Callable[[bytes], T],
        swap: Callable[[T], None],
        interval_s: float = 0.5,
        settle_s: float = 0.05,
    ) -> None:
        """`text` is what is in force. `build` may take its time and raise ConfigError; `swap` is
        called on the event loop and must do neither."""
        self._path = path
        self._text = text
        self._build = build
        self._swap = swap
        self._changes = changes(path, interval_s=interval_s, settle_s=settle_s)
        self.taken = 0
        """Configurations that took over."""
        self.refused = 0
        """Changes of the file that could not be used."""
        self.current = True
        """Whether what is in force is what the file says."""

    async def run(self) -> None:
        """Until it is cancelled."""
        async for _ in self._changes:
            try:
                await self._look()
            except ConfigError as error:
                self.refused += 1
                self.current = False
                log.error("configuration refused, the old one stays", error=str(error))  # noqa: TRY400 - the place says it all

    async def _look(self) -> None:
        text = await asyncio.to_thread(read_file, self._path)
        if text != self._text:
            built = await asyncio.to_thread(self._build, text)
            self._swap(built)
            self._text = text
            self.taken += 1
            log.info("configuration changed", file=str(self._path), taken=self.taken)
        self.current = True
