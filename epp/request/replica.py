"""Names of decisions, which tell the replica that made them. Pure but for its randomness."""

import os
import re
from collections.abc import Callable, Iterator

ID_BYTES = 16
DRAWN = 64
"""Ids whose random bytes are drawn at once."""
MAX_REPLICA = 24
"""Characters of a replica's name in an id. The end of a pod's name tells it from its siblings."""


def short_name(pod_name: str | None) -> str:
    """What of a replica's name goes into its ids: lower-case letters, digits, dots and dashes."""
    clean = re.sub(r"[^a-z0-9.-]+", "-", (pod_name or "").lower())
    return clean[-MAX_REPLICA:].strip("-.")


def new_ids(pod_name: str | None = None) -> Callable[[], str]:
    """Gives ids that are unique over restarts and replicas: 128 random bits in hex, after the
    replica's name where it has one."""
    name = short_name(pod_name)
    prefix = f"{name}-" if name else ""
    random = _random()
    return lambda: prefix + next(random)


def _random() -> Iterator[str]:
    """Drawn from the system for many ids at once, for a draw takes longer than the rest."""
    while True:
        drawn = os.urandom(ID_BYTES * DRAWN).hex()
        for at in range(0, len(drawn), 2 * ID_BYTES):
            yield drawn[at : at + 2 * ID_BYTES]
