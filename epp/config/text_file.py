"""Read a file that users write."""

from pathlib import Path

from epp.errors import ConfigError

from .located import MAX_BYTES


def read_file(path: Path | str) -> bytes:
    """Its bytes, not many more than `located.read` takes. Raises ConfigError."""
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
