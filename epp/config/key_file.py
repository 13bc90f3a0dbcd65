"""Files with a secret that is changed while everything runs: one key a line, two at most.

The first key is used, both are accepted. To change it, write the new one below the old, then, when
all have read that, above it, and at last alone.
"""

from pathlib import Path

from epp.errors import ConfigError

from .text_file import read_file

MIN_BYTES = 32
MAX_FILE = 4096


def read_keys(path: Path) -> tuple[bytes, bytes | None]:
    """The key in use, and the other one. Raises ConfigError, which shows no key."""
    return parse_keys(read_file(path), str(path))


def parse_keys(text: bytes, where: str) -> tuple[bytes, bytes | None]:
    """Like `read_keys`, for text already read; `where` names it in errors."""
    if len(text) > MAX_FILE:
        raise ConfigError(where, f"is larger than {MAX_FILE} bytes")
    keys = [key for key in (line.strip() for line in text.splitlines()) if key]
    if len(keys) not in {1, 2}:
        raise ConfigError(where, f"holds {len(keys)} keys; write one, or two to change it")
    if any(len(key) < MIN_BYTES for key in keys):
        raise ConfigError(where, f"holds a key of less than {MIN_BYTES} bytes")
    return keys[0], keys[1] if keys[1:] else None
