"""Secrets that come in a file of their own."""

from pathlib import Path

from epp.errors import ConfigError


def read_token(path: Path) -> str:
    """The token that the file holds. Raises ConfigError, which never shows it."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    if not token:
        raise ConfigError(str(path), "holds no token")
    return token
