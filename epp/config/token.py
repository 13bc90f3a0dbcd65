"""Secrets that come in a file of their own."""

import re
from hmac import compare_digest
from pathlib import Path

from epp.errors import ConfigError

_SHOWABLE = re.compile(r"[\x21-\x2b\x2d-\x7e]{16,1024}")
"""Fits into a header, where a comma would join two of them."""


def read_token(path: Path) -> str:
    """The token that the file holds. Raises ConfigError, which never shows it."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(str(path), "holds no token: not a text") from None
    if not token:
        raise ConfigError(str(path), "holds no token")
    return token


def read_header_token(path: Path) -> str:
    """The same for a token that is shown in a header."""
    token = read_token(path)
    if not _SHOWABLE.fullmatch(token):
        raise ConfigError(
            str(path),
            "holds no usable token: 16 to 1024 printable ASCII characters without blanks and "
            "commas, such as from `openssl rand -hex 32`",
        )
    return token


def is_token(given: str, token: str) -> bool:
    """Whether that is the token, in a time that tells nothing of where they differ."""
    return compare_digest(given.encode("utf-8", "replace"), token.encode())
