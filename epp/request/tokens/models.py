"""The models whose files are mounted, read after the start: engines are asked meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import structlog

from epp.errors import ConfigError

from . import files
from .local import LocalModel
from .prefixes import Prefixes

log = structlog.get_logger(__name__)


class Models:
    """Served names and who makes their tokens. `load` runs in a thread of its own."""

    def __init__(self, directory: Path, prefixes: Prefixes) -> None:
        """Raises ConfigError for a directory without models."""
        self._folders = files.find(directory)
        self._prefixes = prefixes
        self._loaded: dict[str, LocalModel] = {}

    def __len__(self) -> int:
        return len(self._loaded)

    def __iter__(self) -> Iterator[str]:
        """Names of those that are ready."""
        return iter(self._loaded)

    def of(self, model: str) -> LocalModel | None:
        """Who makes the tokens of a served name; None while, or because, nobody can."""
        return self._loaded.get(model if model in self._folders else files.ANY)

    def load(self) -> None:
        """Read all files, those of links once. One that cannot be used is told and left out."""
        known: dict[Path, LocalModel] = {}
        for name, folder in self._folders.items():
            place = folder.resolve()
            try:
                model = known.get(place) or LocalModel(files.read(folder), self._prefixes)
            except ConfigError as error:
                why = str(error)
                log.warning("tokenizer files ignored", model=name or "*", why=why)
                continue
            known[place] = self._loaded[name] = model
            if model.slow:
                log.warning("tokens cost much CPU here", model=name or "*", why=model.slow)
            if model.without_chat:
                log.warning(
                    "chats are not rendered here", model=name or "*", why=model.without_chat
                )
            log.info("tokenizer loaded", model=name or "*", folder=str(folder))
