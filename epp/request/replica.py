"""Names of decisions, which tell the replica that made them. Pure but for its randomness."""

import re
from collections.abc import Callable

from epp.ids import ids

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
    return ids(f"{name}-" if name else "")
