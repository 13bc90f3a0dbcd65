"""Random ids."""

import os
from collections.abc import Callable, Iterator

ID_BYTES = 16
DRAWN = 64
"""Ids whose random bytes are drawn at once."""


def ids(prefix: str) -> Callable[[], str]:
    """Gives ids that are unique over restarts and processes: 128 random bits in hex, after this."""
    random = _random()
    return lambda: prefix + next(random)


def _random() -> Iterator[str]:
    """128 random bits in hex, again and again. Drawn from the system for many ids at once, for a
    draw takes longer than the rest."""
    while True:
        drawn = os.urandom(ID_BYTES * DRAWN).hex()
        for at in range(0, len(drawn), 2 * ID_BYTES):
            yield drawn[at : at + 2 * ID_BYTES]
