"""The file with a pool's key for cache salts; the picker and all sidecars read the same one."""

from pathlib import Path

from epp.errors import ConfigError

MIN_BYTES = 32
MAX_BYTES = 4096


def read_salt_key(path: Path) -> bytes:
    """The key, without space around it. Raises ConfigError, which never shows it."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    key = text.strip()
    if len(text) > MAX_BYTES or len(key) < MIN_BYTES:
        raise ConfigError(str(path), f"holds no key of {MIN_BYTES} to {MAX_BYTES} bytes")
    return key
